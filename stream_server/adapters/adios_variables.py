"""The variables of an ADIOS2 step that are fields of a study, found by their names or by openPMD's conventions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stream_server.adapters.fields import Arrays, matches


@dataclass(frozen=True, kw_only=True, slots=True)
class AdiosStep:
    """One time step, that of the openPMD iteration if there is one; a field that is not there is None.

    `names` are its variables, `found` those of the fields, and `units` their factors to SI units.
    """

    time_step: int | None
    fields: dict[str, np.ndarray | None]
    found: dict[str, str]
    units: dict[str, float]
    names: list[str]


def time_steps(reader: Any, variables: Mapping[str, str]) -> Iterator[AdiosStep]:
    """The time steps in one step: more than one if openPMD has written several iterations at once."""
    arrays, names, attributes = arrays_of(reader), set(reader.available_variables()), reader.available_attributes()
    found = {field: matches(name, names) for field, name in variables.items()}
    same = {field: matches(name, arrays.keys() - names) for field, name in variables.items()}
    snapshot = reader.read_attribute("/data/snapshot") if "/data/snapshot" in attributes else None
    iterations: list[int | None] = [*sorted({it for each in found.values() for it in each if it is not None})]
    for iteration in iterations or [None]:
        here = {
            field: name
            for field in variables
            if (name := (same[field] | found[field]).get(iteration, found[field].get(None))) is not None
        }
        units = {
            it: float(reader.read_attribute(f"{here[it]}/unitSI")) for it in here if f"{here[it]}/unitSI" in attributes
        }
        label = iteration if snapshot is None or iteration is not None else int(np.ravel(snapshot)[0])
        fields = {it: np.asarray(arrays[here[it]]()) if it in here else None for it in variables}
        yield AdiosStep(time_step=label, fields=fields, found=here, units=units, names=list(arrays))


def arrays_of(reader: Any) -> Arrays:
    """All arrays of the present step: variables, and the constant components of openPMD, which are attributes."""
    attributes = reader.available_attributes()
    constants = [name for name in (it.removesuffix("/value") for it in attributes) if f"{name}/shape" in attributes]

    def constant(name: str) -> np.ndarray:
        shape = np.ravel(reader.read_attribute(f"{name}/shape")).astype(int)
        return np.full(shape, reader.read_attribute(f"{name}/value"))

    found = {name: partial(constant, name) for name in constants}
    return {name: partial(reader.read, name) for name in reader.available_variables()} | found
