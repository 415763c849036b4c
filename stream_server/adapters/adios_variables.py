"""What a step of an ADIOS2 stream has for the fields of a study: variables by name, or by openPMD's conventions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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
    names, attributes = list(reader.available_variables()), reader.available_attributes()
    constants = [name for name in (it.removesuffix("/value") for it in attributes) if f"{name}/shape" in attributes]
    found = {field: _matches(name, names) for field, name in variables.items()}
    same = {field: _matches(name, constants) for field, name in variables.items()}
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
        fields = {it: _array(reader, here[it], names) if it in here else None for it in variables}
        yield AdiosStep(time_step=label, fields=fields, found=here, units=units, names=names + constants)


def _matches(name: str, names: Sequence[str]) -> dict[int | None, str]:
    """The variable of this name, or of each openPMD iteration, /data/20/NAME, or of the present one, /data/NAME."""
    if name in names:
        return {None: name}
    pattern = re.compile(rf"/data/(?:(\d+)/)?{re.escape(name)}")
    matches = ((pattern.fullmatch(it), it) for it in names)
    return {None if match[1] is None else int(match[1]): it for match, it in matches if match}


def _array(reader: Any, name: str, names: Sequence[str]) -> np.ndarray:
    if name not in names:
        shape = np.ravel(reader.read_attribute(f"{name}/shape")).astype(int)
        return np.full(shape, reader.read_attribute(f"{name}/value"))
    return np.asarray(reader.read(name))
