"""The fields that are sent once per simulation, kept once for all samples of it.

Why: docs/decisions/0020-fields-once-per-simulation.md
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.ragged import array_of

FieldArrays = dict[str, npt.NDArray[Any]]

# Between two looks at what is still needed, the number of simulations may grow by this part, and by so many or, of
# large fields, as many as have this many bytes.
SURPLUS_SHARE = 4
SURPLUS = 16
SURPLUS_BYTES = 2**26


class ArrayRows:
    """Rows that have an array for each field: row i those of the i-th of `arrays`; of `ragged` fields they differ."""

    arrays: Sequence[FieldArrays]
    ragged: frozenset[str]

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of one row of each field, of a ragged one the largest; empty while there is no row."""
        first, lengths = self.arrays[0] if self.arrays else {}, self.lengths
        largest = {name: max(1, int(lengths[name].max())) for name in lengths}
        return {
            name: (array.dtype, (largest[name], *array.shape[1:]) if name in largest else array.shape)
            for name, array in first.items()
        }

    @property
    def lengths(self) -> dict[str, npt.NDArray[np.int64]]:
        """The lengths of each ragged field in all rows."""
        names = self.ragged.intersection(self.arrays[0]) if self.arrays else ()
        return {name: np.array([len(row[name]) for row in self.arrays], np.int64) for name in names}

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """The values of one field in rows `start` to `stop`; of a ragged one they are an array of arrays."""
        some = [row[name] for row in self.arrays[start:stop]]
        return array_of(some) if name in self.ragged else np.stack(some)

    def state(self) -> dict[str, Any]:
        """Everything but the values of the fields, as plain containers and arrays."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FrozenStatics(ArrayRows):
    """The static fields of some simulations at one moment, and which of them count in the statistics already."""

    simulations: tuple[int, ...]
    arrays: tuple[FieldArrays, ...]
    observed: tuple[bool, ...]
    ragged: frozenset[str]

    def state(self) -> dict[str, Any]:
        return {"simulations": np.array(self.simulations, np.int64), "observed": np.array(self.observed, bool)}


class StaticFields:
    """The static fields of simulations with samples here or to come: arrays that never change.

    The receiver thread adds and removes simulations; any thread may read those of a sample that it holds.

    Attributes:
        shapes: the shape of each static field, of one in `ragged` the largest; empty where the study has none.
        ragged: the fields whose first extent differs from simulation to simulation.
        dtypes: their types, as far as they are known; all of them once those of a simulation are here.
        observed: the simulations that count in the statistics, also of those that are not here any more.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], *, ragged: Collection[str] = ()) -> None:
        self.shapes = dict(shapes)
        self.ragged = frozenset(ragged)
        self._of: dict[int, FieldArrays] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.observed: set[int] = set()
        self._limit = SURPLUS

    def __contains__(self, simulation: int) -> bool:
        return simulation in self._of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, simulation: int) -> FieldArrays:
        """The static fields of one simulation, by name: read-only arrays.

        Raises:
            KeyError: there are none of this simulation.
        """
        return self._of[simulation] if self.shapes else {}

    def find(self, simulation: int) -> FieldArrays | None:
        """The same; None if there are none."""
        return self._of.get(simulation)

    def num_rows(self, simulation: int) -> dict[str, int]:
        """The length of each ragged field of a simulation; empty if there are none of it."""
        kept = self._of.get(simulation, {})
        return {name: len(array) for name, array in kept.items() if name in self.ragged}

    def put(self, simulation: int, arrays: Mapping[str, npt.NDArray[Any]], *, observed: bool = False) -> None:
        """Keep the static fields of a simulation, all of them; the arrays are not copied, and become read-only."""
        kept = {name: np.asarray(array) for name, array in arrays.items()}
        assert kept.keys() == self.shapes.keys()
        assert all(self._fits(name, array.shape) for name, array in kept.items())
        for array in kept.values():
            array.flags.writeable = False
        self.dtypes = {name: array.dtype for name, array in kept.items()}
        self._of[simulation] = kept
        if observed:
            self.observed.add(simulation)

    def keep(self, is_needed: Callable[[], Callable[[int], bool]]) -> None:
        """Let go of the simulations that are not needed, if they have become more since the last look.

        `is_needed` is asked once for a look, and then for each simulation. So what is kept is never much more than what
        is needed, and a look costs little for each simulation that comes.
        """
        if len(self._of) <= self._limit:
            return
        needed = is_needed()
        for simulation in [each for each in self._of if not needed(each)]:
            del self._of[simulation]
        num_bytes = sum(dtype.itemsize * math.prod(self.shapes[name]) for name, dtype in self.dtypes.items())
        surplus = len(self._of) // SURPLUS_SHARE + SURPLUS
        self._limit = len(self._of) + min(surplus, SURPLUS_BYTES // max(1, num_bytes))

    def gather(self, simulations: npt.NDArray[np.int64], out: FieldArrays | None = None) -> FieldArrays:
        """The static fields of these simulations, stacked along a first axis; written into `out`, or new arrays.

        Of a ragged field it is an array of as many arrays, of dtype object, and never in `out`.
        """
        if not self.shapes:
            return {}
        kept, num = [self[each] for each in simulations.tolist()], len(simulations)
        return {
            name: array_of([arrays[name].copy() for arrays in kept])
            if name in self.ragged
            else np.stack([arrays[name] for arrays in kept], out=None if out is None else out[name][:num])
            for name in self.shapes
        }

    def empty(self, num: int) -> FieldArrays:
        """Arrays for the static fields of `num` simulations, some of them known before; none for ragged ones."""
        return {
            name: np.empty((num, *shape), self.dtypes[name])
            for name, shape in self.shapes.items()
            if name not in self.ragged
        }

    def take_new(self, simulations: Iterable[int], name: str) -> npt.NDArray[Any]:
        """One field of the simulations not `observed` before, stacked along a first axis.

        Of a ragged field the rows of all one after the other.
        """
        new = [self._of[each][name] for each in dict.fromkeys(simulations) if each not in self.observed]
        if name in self.ragged:
            return np.concatenate([np.empty((0, *self.shapes[name][1:]), self.dtypes[name]), *new])
        return np.stack(new) if new else np.empty((0, *self.shapes[name]))

    def observe(self, simulations: Iterable[int]) -> None:
        """Note that these simulations count in the statistics now."""
        self.observed.update(simulations)

    def freeze(self) -> FrozenStatics:
        """The fields as they are now. The receiver must be between two turns."""
        simulations = tuple(self._of)
        return FrozenStatics(
            simulations=simulations,
            arrays=tuple(self._of.values()),
            observed=tuple(each in self.observed for each in simulations),
            ragged=self.ragged,
        )

    def _fits(self, name: str, shape: tuple[int, ...]) -> bool:
        largest = self.shapes[name]
        if name not in self.ragged:
            return shape == largest
        return shape[1:] == largest[1:] and shape[0] <= largest[0]
