"""The steps of held-out simulations, kept apart from the buffer: they are never trained on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Slots
from stream_server.buffers.statics import ArrayRows, FieldArrays
from stream_server.ragged import array_of


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    time_step: int
    fields: FieldArrays
    present: dict[str, bool]


@dataclass(frozen=True, kw_only=True)
class HeldOutRows(ArrayRows):
    """Steps of held-out simulations at one moment; they never change. Values that are not `present` are zero."""

    simulation_ids: npt.NDArray[np.int64]
    steps: Sequence[_Row]
    arrays: Sequence[FieldArrays]
    complete: tuple[int, ...]
    ragged: frozenset[str] = frozenset()

    @cached_property
    def time_steps(self) -> npt.NDArray[np.int64]:
        return np.array([row.time_step for row in self.steps], np.int64)

    @cached_property
    def present(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Which rows have each field."""
        names = self.steps[0].present if self.steps else ()
        return {name: np.array([row.present[name] for row in self.steps], bool) for name in names}

    def state(self) -> dict[str, Any]:
        return {
            "simulation_ids": self.simulation_ids,
            "time_steps": self.time_steps,
            "present": self.present,
            "complete": list(self.complete),
        }

    def take(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Copies of the values of one field in these rows, stacked along axes of their shape.

        Of a ragged field they are an array of arrays.
        """
        values = [self.arrays[row][name] for row in rows.ravel().tolist()]
        if name in self.ragged:
            return array_of([value.copy() for value in values]).reshape(rows.shape)
        return np.stack(values).reshape(*rows.shape, *values[0].shape)


class ValidationStore:
    """The samples that this rank received from the simulations with ids 0 to `num_simulations` - 1.

    `ragged` names the fields that differ in size.

    The receiver thread adds rows and says which simulations are complete; the training thread reads those.
    """

    def __init__(self, num_simulations: int, *, ragged: Collection[str] = ()) -> None:
        self.num_simulations = num_simulations
        self.ragged = frozenset(ragged)
        self._lock = Lock()
        self._rows: dict[int, list[_Row]] = {}
        self._complete: set[int] = set()
        self._in_order: HeldOutRows | None = None

    def __contains__(self, simulation: int) -> bool:
        """Whether a simulation is held out."""
        return simulation < self.num_simulations

    def add(self, simulation: int, time_step: int, fields: Mapping[str, Any], present: Mapping[str, bool]) -> None:
        """Copy a step. Receiver thread."""
        row = _Row(
            time_step=time_step, fields={name: np.array(value) for name, value in fields.items()}, present=dict(present)
        )
        with self._lock:
            self._rows.setdefault(simulation, []).append(row)

    def keep(self, slots: Slots, slot: int) -> None:
        """Copy the step in a slot. Receiver thread."""
        fields = {name: slots.value(name, slot) for name in slots.arrays}
        present = {name: bool(slots.present[name][slot]) for name in slots.arrays}
        self.add(int(slots.simulation_ids[slot]), int(slots.time_steps[slot]), fields, present)

    def last_step(self, simulation: int) -> dict[int, FieldArrays]:
        """The fields of the last time step of a simulation that is here, by that time step. Receiver thread."""
        rows = self._rows.get(simulation, ())
        last = sorted(rows, key=lambda row: row.time_step)[-1:]
        return {row.time_step: {name: value for name, value in row.fields.items() if row.present[name]} for row in last}

    def complete(self, simulation: int) -> None:
        """All steps of a simulation have come, on all ranks. Receiver thread."""
        with self._lock:
            self._complete.add(simulation)
            self._in_order = None

    def withdraw(self, simulation: int) -> None:
        """Forget a simulation. Receiver thread."""
        with self._lock:
            self._rows.pop(simulation, None)
            self._complete.discard(simulation)
            self._in_order = None

    def freeze(self) -> HeldOutRows:
        """All rows as they are now. The receiver must be between two turns."""
        with self._lock:
            return self._rows_of(self._rows)

    def complete_rows(self) -> HeldOutRows:
        """The complete simulations in the order of their ids and time steps."""
        with self._lock:
            if self._in_order is None:
                found = sorted(self._complete & self._rows.keys())
                self._in_order = self._rows_of(
                    {it: sorted(self._rows[it], key=lambda row: row.time_step) for it in found}
                )
            return self._in_order

    def _rows_of(self, steps: Mapping[int, Sequence[_Row]]) -> HeldOutRows:
        rows = [row for of_one in steps.values() for row in of_one]
        return HeldOutRows(
            simulation_ids=np.repeat(np.array([*steps], np.int64), [len(of_one) for of_one in steps.values()]),
            steps=rows,
            arrays=[row.fields for row in rows],
            complete=tuple(sorted(self._complete)),
            ragged=self.ragged,
        )


class NoValidationStore(ValidationStore):
    """Knows which simulations are held out, and keeps nothing of them: a study that is not trained needs none."""

    def add(self, simulation: int, time_step: int, fields: Mapping[str, Any], present: Mapping[str, bool]) -> None:
        """Let go of a step."""
