"""The samples themselves: one array per field, one row per slot, and the free rows among them.

Why: docs/decisions/0025-ragged-slots.md
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import SlotArray
from stream_server.buffers.row_copies import Take, take
from stream_server.buffers.statics import FieldArrays, StaticFields

NONE = -1


class Slots:
    """Rows for `num_slots` samples. A row has one owner at a time, who alone may touch it: see `Buffer`.

    Attributes:
        arrays: per field an array of shape (num_slots, *shape of the field), once `allocate` was called.
        simulation_ids, time_steps: the keys of the samples; time steps are labels.
        lengths: per step field in `ragged` the length of its first axis in each row, which in `arrays` is the largest.
        seen: how often each sample was drawn.
        present: per field whether the sample has it; see `leave_out`.
        statics: the fields that all samples of a simulation share.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        num_slots: int,
        static_shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        ragged: Collection[str] = (),
    ) -> None:
        if num_slots < 1:
            raise ValueError(f"There must be at least 1 slot, but num_slots is {num_slots}.")
        if not shapes:
            raise ValueError("A sample must have at least 1 field, but there are none.")
        for name, shape in {**shapes, **(static_shapes or {})}.items():
            if any(extent < 1 for extent in shape):
                raise ValueError(f"Every extent of field {name!r} must be at least 1, but its shape is {shape}.")
        self.shapes = dict(shapes)
        self.num_slots = num_slots
        self.arrays: FieldArrays = {}
        self.statics = StaticFields(static_shapes or {}, ragged=(static_shapes or {}).keys() & set(ragged))
        self.simulation_ids = np.full(num_slots, NONE, np.int64)
        self.time_steps = np.zeros(num_slots, np.int64)
        self.lengths = {name: np.zeros(num_slots, np.int64) for name in ragged if name in shapes}
        self.seen = np.zeros(num_slots, np.uint32)
        self.present = {name: np.ones(num_slots, bool) for name in shapes}
        # Last in, first out: pages that were touched before are used again, and a fresh run of slots is contiguous.
        self._free = list(range(num_slots - 1, -1, -1))
        self._partial: set[str] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def fixed(self) -> FieldArrays:
        """The arrays of the fields that have one shape in every row."""
        if not self.lengths:
            return self.arrays
        return {name: array for name, array in self.arrays.items() if name not in self.lengths}

    @property
    def sample_bytes(self) -> int:
        """Bytes of one row over all fields, of the largest if they differ; 0 before `allocate`."""
        return sum(array.nbytes for array in self.arrays.values()) // self.num_slots

    def allocate(self, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        """Reserve the arrays, once; memory is used page by page as rows are filled.

        Raises:
            ValueError: `dtypes` does not name exactly the fields.
        """
        assert not self.arrays, "allocated twice"
        if set(dtypes) != set(self.shapes):
            raise ValueError(f"Expected a dtype for each of the fields {sorted(self.shapes)}, found {sorted(dtypes)}.")
        self.arrays = {name: np.empty((self.num_slots, *shape), dtypes[name]) for name, shape in self.shapes.items()}

    def occupy(
        self,
        *,
        simulation_ids: npt.NDArray[np.int64],
        time_steps: npt.NDArray[np.int64],
        seen: npt.NDArray[np.uint32],
        present: Mapping[str, npt.NDArray[np.bool_]],
    ) -> None:
        """Take the first slots, one for each sample with these keys, while all are free.

        Raises:
            ValueError: there are fewer slots, or `present` does not name exactly the fields.
        """
        num = len(simulation_ids)
        assert len(self._free) == self.num_slots, "occupied after a claim"
        if num > self.num_slots:
            raise ValueError(f"There must be a slot for each of {num} samples, but there are {self.num_slots}.")
        if set(present) != set(self.shapes):
            raise ValueError(f"Expected the fields {sorted(self.shapes)} in the samples, found {sorted(present)}.")
        self.simulation_ids[:num] = simulation_ids
        self.time_steps[:num] = time_steps
        self.seen[:num] = seen
        for name, is_present in present.items():
            self.present[name][:num] = is_present
            if not np.all(is_present):
                self._partial.add(name)
        del self._free[self.num_slots - num :]

    def claim(self, num: int) -> list[int]:
        """Take `num` free slots, or none at all when there are fewer."""
        if not 0 < num <= len(self._free):
            return []
        claimed = self._free[-num:]
        del self._free[-num:]
        claimed.reverse()
        # NumPy would make an array of the list each time.
        rows = np.array(claimed)
        self.seen[rows] = 0
        self.simulation_ids[rows] = NONE
        for lengths in self.lengths.values():
            lengths[rows] = 0
        for name in self._partial:
            self.present[name][rows] = True
        return claimed

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back; the caller has seen to it that nobody reads them any more."""
        self._free.extend(slots)
        assert len(self._free) <= self.num_slots, "a slot was freed twice"

    def simulations(self) -> set[int]:
        """The simulations that have rows here, filled and not free."""
        is_used = np.ones(self.num_slots, bool)
        is_used[self._free] = False
        return set(np.unique(self.simulation_ids[is_used]).tolist()) - {NONE}

    def leave_out(self, name: str, slots: Sequence[int]) -> None:
        """Mark that these claimed slots have no such field, and zero its rows, or make them empty if it is ragged."""
        self._partial.add(name)
        self.present[name][slots] = False
        if name in self.lengths:
            self.lengths[name][slots] = 0
        else:
            self.arrays[name][slots] = 0

    def value(self, name: str, slot: int) -> npt.NDArray[Any]:
        """The values of a field in a slot, as a view; of a ragged field only the existing rows."""
        array = self.arrays[name][slot, ...]
        return array[: self.lengths[name][slot]] if name in self.lengths else array

    def rows(self, name: str, slots: SlotArray) -> npt.NDArray[Any]:
        """Copies of a field in some slots, stacked; of a ragged one the rows of all one after the other."""
        array = self.arrays[name]
        if name not in self.lengths:
            return array[slots]
        return np.concatenate(
            [array[:0].reshape(0, *array.shape[2:]), *(self.value(name, slot) for slot in slots.tolist())]
        )

    def set_value(self, name: str, slot: int, value: npt.NDArray[Any]) -> None:
        """Copy the values of a field into a slot."""
        if name in self.lengths:
            self.lengths[name][slot] = len(value)
        self.value(name, slot)[...] = value

    def fill(self, slot: int, simulation: int, time_step: int, values: FieldArrays) -> None:
        """Make a claimed slot this sample; the fields without values are left out."""
        self.simulation_ids[slot], self.time_steps[slot] = simulation, time_step
        for name in self.arrays:
            if name in values:
                self.set_value(name, slot, values[name])
            else:
                self.leave_out(name, [slot])

    def set_values(self, name: str, slots: SlotArray | slice, values: npt.NDArray[Any]) -> None:
        """Copy the values of a field into several slots; of a ragged one they are an array of arrays."""
        if name not in self.lengths:
            self.arrays[name][slots] = values
            return
        for slot, value in zip(np.arange(self.num_slots)[slots].tolist(), values, strict=True):
            self.set_value(name, slot, value)

    def gather(self, slots: SlotArray, out: FieldArrays | None = None, take: Take = take) -> FieldArrays:
        """Copy the rows of `slots`, of any shape, into the leading rows of `out`, or into new arrays, by `take`.

        Of a ragged field it is an array of as many arrays, of dtype object, and never in `out`.
        """
        num = len(slots)
        if out is None:
            out = {name: np.empty((*slots.shape, *array.shape[1:]), array.dtype) for name, array in self.fixed.items()}
        gathered = {name: take(array, slots, out[name][:num]) for name, array in self.fixed.items()}
        if not self.lengths:
            return gathered
        return {name: gathered[name] if name in gathered else self._gather_ragged(name, slots) for name in self.arrays}

    def _gather_ragged(self, name: str, slots: SlotArray) -> npt.NDArray[Any]:
        gathered = np.empty(slots.shape, object)
        for place, slot in np.ndenumerate(slots):
            gathered[place] = self.value(name, int(slot)).copy()
        return gathered


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contents:
    """Copies of all samples that can be drawn, row by row; rows of a field that is not `present` are zero.

    Ragged fields are as in `Slots.gather`.
    """

    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]
    seen: npt.NDArray[np.uint32]
    fields: FieldArrays
    present: dict[str, npt.NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.simulation_ids)
