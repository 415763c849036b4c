"""The fields that are sent once per simulation, kept once for all samples of it."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FieldArrays = dict[str, npt.NDArray[Any]]

# Between two looks at what is still needed, the number of simulations may grow by this part, and by so many or, of
# large fields, as many as have so many bytes.
SURPLUS_SHARE = 4
SURPLUS = 16
SURPLUS_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class FrozenStatics:
    """The static fields of some simulations at one moment: row i of each field is that of the i-th of `simulations`.

    `observed` tells which of them count in the statistics already.
    """

    simulations: tuple[int, ...]
    arrays: tuple[FieldArrays, ...]
    observed: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.simulations)

    @property
    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of one row of each field; empty while there is no row."""
        first = self.arrays[0] if self.arrays else {}
        return {name: (array.dtype, array.shape) for name, array in first.items()}

    def rows(self, name: str, rows: range) -> npt.NDArray[Any]:
        """The values of one field in some rows."""
        return np.stack([arrays[name] for arrays in self.arrays[rows.start : rows.stop]])


class StaticFields:
    """The static fields of the simulations of which samples are here, or may come: arrays that never change.

    The receiver thread adds and removes simulations; any thread may read those of a sample that it holds.

    Attributes:
        shapes: the shape of each static field; empty where the study has none.
        dtypes: their types, as far as they are known; all of them once those of a simulation are here.
        observed: the simulations that count in the statistics, also of those that are not here any more.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
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

    def put(self, simulation: int, arrays: Mapping[str, npt.NDArray[Any]], *, observed: bool = False) -> None:
        """Keep the static fields of a simulation, all of them; the arrays are not copied, and become read-only."""
        kept = {name: np.asarray(array) for name, array in arrays.items()}
        assert {name: array.shape for name, array in kept.items()} == self.shapes
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
        for simulation in [it for it in self._of if not needed(it)]:
            del self._of[simulation]
        num_bytes = sum(dtype.itemsize * math.prod(self.shapes[name]) for name, dtype in self.dtypes.items())
        surplus = len(self._of) // SURPLUS_SHARE + SURPLUS
        self._limit = len(self._of) + min(surplus, SURPLUS_BYTES // max(1, num_bytes))

    def gather(self, simulations: npt.NDArray[np.int64], out: FieldArrays | None = None) -> FieldArrays:
        """The static fields of these simulations, stacked along a first axis; written into `out`, or new arrays."""
        kept, num = [self[it] for it in simulations.tolist()], len(simulations)
        return {
            name: np.stack([arrays[name] for arrays in kept], out=None if out is None else out[name][:num])
            for name in self.shapes
        }

    def empty(self, num: int) -> FieldArrays:
        """Arrays for the static fields of `num` simulations, of which some were here before."""
        return {name: np.empty((num, *shape), self.dtypes[name]) for name, shape in self.shapes.items()}

    def take_new(self, simulations: Iterable[int], name: str) -> npt.NDArray[Any]:
        """One field of those of these simulations that were not `observed` before, stacked along a first axis."""
        new = [self._of[it][name] for it in dict.fromkeys(simulations) if it not in self.observed]
        return np.stack(new) if new else np.empty((0, *self.shapes[name]))

    def observe(self, simulations: Iterable[int]) -> None:
        """Note that these simulations count in the statistics now."""
        self.observed.update(simulations)

    def freeze(self) -> FrozenStatics:
        """The fields as they are now. The receiver must be between two turns."""
        simulations = tuple(self._of)
        return FrozenStatics(simulations, tuple(self._of.values()), tuple(it in self.observed for it in simulations))
