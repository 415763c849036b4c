"""The steps of held-out simulations, kept apart from the buffer: they are never trained on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.ragged import array_of, row_of

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The stacked steps of the complete held-out simulations of one rank; rows that are not `present` are zero.

    Of a ragged field they are an array of arrays, which are empty where it is not present.
    """

    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]
    fields: Arrays
    present: dict[str, npt.NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.simulation_ids)


@dataclass(kw_only=True, slots=True)
class _Row:
    time_step: int
    fields: Arrays
    present: dict[str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutRows:
    """All rows of a store at one moment, the incomplete simulations' too; they never change."""

    simulation_ids: tuple[int, ...]
    steps: tuple[_Row, ...]
    complete: tuple[int, ...]
    ragged: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.steps)

    def state(self) -> dict[str, Any]:
        """Everything but the fields' values, as plain containers and arrays."""
        names = self.steps[0].fields if self.steps else ()
        return {
            "simulation_ids": np.array(self.simulation_ids, np.int64),
            "time_steps": np.array([row.time_step for row in self.steps], np.int64),
            "present": {name: np.array([row.present[name] for row in self.steps], bool) for name in names},
            "complete": list(self.complete),
        }

    @property
    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of one row of each field, of a ragged one the largest; empty while there is no row."""
        first, lengths = self.steps[0].fields if self.steps else {}, self.lengths
        return {
            name: (
                array.dtype,
                (max(1, int(lengths[name].max())), *array.shape[1:]) if name in lengths else array.shape,
            )
            for name, array in first.items()
        }

    @property
    def lengths(self) -> dict[str, npt.NDArray[np.int64]]:
        """The lengths of each ragged field in all rows."""
        names = self.ragged.intersection(self.steps[0].fields) if self.steps else ()
        return {name: np.array([len(row.fields[name]) for row in self.steps], np.int64) for name in names}

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """The values of one field in rows `start` to `stop`."""
        return _stacked([row.fields[name] for row in self.steps[start:stop]], ragged=name in self.ragged)


class ValidationStore:
    """The samples that this rank received from the simulations with ids 0 to `num_simulations` - 1.

    `ragged` names the fields that differ in size.

    The receiver thread adds rows and says which simulations are complete; the training thread reads those. A set
    that was handed out is never changed: the next one is new when more is complete.
    """

    def __init__(self, num_simulations: int, *, ragged: Collection[str] = ()) -> None:
        self.num_simulations = num_simulations
        self.ragged = frozenset(ragged)
        self._lock = Lock()
        self._rows: dict[int, list[_Row]] = {}
        self._complete: set[int] = set()
        self._stacked: HeldOut | None = None

    def __contains__(self, simulation: int) -> bool:
        """Whether a simulation is held out."""
        return simulation < self.num_simulations

    @property
    def num_bytes(self) -> int:
        """Memory that the samples take."""
        with self._lock:
            return sum(a.nbytes for rows in self._rows.values() for row in rows for a in row.fields.values())

    def add(self, simulation: int, time_step: int, fields: Mapping[str, Any], present: Mapping[str, bool]) -> None:
        """Copy a step. Receiver thread."""
        row = _Row(
            time_step=time_step, fields={name: np.array(value) for name, value in fields.items()}, present=dict(present)
        )
        with self._lock:
            self._rows.setdefault(simulation, []).append(row)

    def last_step(self, simulation: int) -> dict[int, Arrays]:
        """The fields of the last time step of a simulation that is here, by that time step. Receiver thread."""
        rows = self._rows.get(simulation, ())
        last = sorted(rows, key=lambda row: row.time_step)[-1:]
        return {row.time_step: {name: value for name, value in row.fields.items() if row.present[name]} for row in last}

    def complete(self, simulation: int) -> None:
        """All steps of a simulation have come, on all ranks. Receiver thread."""
        with self._lock:
            self._complete.add(simulation)
            self._stacked = None

    def withdraw(self, simulation: int) -> None:
        """Forget a simulation. Receiver thread."""
        with self._lock:
            self._rows.pop(simulation, None)
            self._complete.discard(simulation)
            self._stacked = None

    def freeze(self) -> HeldOutRows:
        """All rows as they are now. The receiver must be between two turns."""
        with self._lock:
            return HeldOutRows(
                simulation_ids=tuple(simulation for simulation, rows in self._rows.items() for _ in rows),
                steps=tuple(row for rows in self._rows.values() for row in rows),
                complete=tuple(sorted(self._complete)),
                ragged=self.ragged,
            )

    def load(self, state: Mapping[str, Any], fields: Arrays) -> None:
        """Take back what `HeldOutRows` held: its `state`, and the values of each field, one row for each step."""
        with self._lock:
            for i, (simulation, time_step) in enumerate(
                zip(state["simulation_ids"].tolist(), state["time_steps"].tolist(), strict=True)
            ):
                row = _Row(
                    time_step=time_step,
                    fields={name: row_of(array, i) for name, array in fields.items()},
                    present={name: bool(present[i]) for name, present in state["present"].items()},
                )
                self._rows.setdefault(simulation, []).append(row)
            self._complete.update(state["complete"])
            self._stacked = None

    def stacked(self) -> HeldOut | None:
        """The complete simulations in the order of their ids and time steps; None while there is no row."""
        with self._lock:
            if self._stacked is None:
                self._stacked = self._stack()
            return self._stacked

    def _stack(self) -> HeldOut | None:
        rows = [
            (simulation, row)
            for simulation in sorted(self._complete)
            for row in sorted(self._rows.get(simulation, ()), key=lambda row: row.time_step)
        ]
        if not rows:
            return None
        first = rows[0][1]
        stacked = HeldOut(
            simulation_ids=np.array([simulation for simulation, _ in rows], np.int64),
            time_steps=np.array([row.time_step for _, row in rows], np.int64),
            fields={
                name: _stacked([row.fields[name] for _, row in rows], ragged=name in self.ragged)
                for name in first.fields
            },
            present={name: np.array([row.present[name] for _, row in rows], bool) for name in first.fields},
        )
        for i, (_, row) in enumerate(rows):
            # The row's own copy goes; memory holds every sample once.
            row.fields = {name: row_of(array, i) for name, array in stacked.fields.items()}
        return stacked


def dealt_rows(
    state: Mapping[str, Any], fields: Arrays, rank: int, num_ranks: int, *, by_simulation: bool
) -> tuple[dict[str, Any], Arrays]:
    """The share of a rank of what a store held, for `load`: rows or whole simulations at equal distances."""
    rows: Any = slice(rank, None, num_ranks)
    if by_simulation:
        rows = np.flatnonzero(state["simulation_ids"] % num_ranks == rank)
    share = {
        "simulation_ids": state["simulation_ids"][rows],
        "time_steps": state["time_steps"][rows],
        "present": {name: present[rows] for name, present in state["present"].items()},
        "complete": state["complete"],
    }
    return share, {name: array[rows] for name, array in fields.items()}


def _stacked(values: list[npt.NDArray[Any]], *, ragged: bool) -> npt.NDArray[Any]:
    return array_of(values) if ragged else np.stack(values)


class NoValidationStore(ValidationStore):
    """Knows which simulations are held out, and keeps nothing of them: a study that is not trained needs none."""

    def add(self, simulation: int, time_step: int, fields: Mapping[str, Any], present: Mapping[str, bool]) -> None:
        """Let go of a step."""
