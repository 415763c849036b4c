"""Memory for gathered batches."""

import sys

import numpy as np

from stream_server.buffers.slots import Slots
from stream_server.buffers.statics import FieldArrays

MAX_SETS = 4


def _most_references(arrays: FieldArrays) -> int:
    return max(map(sys.getrefcount, arrays.values()), default=0)


_UNUSED = _most_references({"": np.empty(0)})


def no_memory(error: MemoryError) -> str:
    """The error message for a rank that is refused the memory of its buffer."""
    detail = f" ({error})" if str(error) else ""
    return (
        f"buffer.capacity: the system refuses a rank the memory of its buffer{detail}. Write a smaller capacity, or "
        "give the ranks more memory (ulimit -v, the limit of the batch job)"
    )


class BatchMemory:
    """Hands out arrays for `batch_size` samples of every field, and reuses them once nothing refers to them.

    Their shape is (batch_size, *sample_shape, …); there is none for a ragged field. A copy into memory that was just
    allocated costs up to half as much again as one into pages in use. A user's view, or a tensor made from one, refers
    to the array, so what a user still has is never written over.
    """

    def __init__(
        self, slots: Slots, batch_size: int, sample_shape: tuple[int, ...] = (), *, max_sets: int = MAX_SETS
    ) -> None:
        self._slots = slots
        self._shape = (batch_size, *sample_shape)
        self._max_sets = max_sets
        self._sets: list[FieldArrays] = []

    def take(self) -> FieldArrays:
        """A set of unused arrays; the caller writes into leading rows. Always the same thread."""
        for arrays in self._sets:
            if _most_references(arrays) == _UNUSED:
                return arrays
        arrays = {
            name: np.empty((*self._shape, *array.shape[1:]), array.dtype) for name, array in self._slots.fixed.items()
        } | self._slots.statics.empty(self._shape[0])
        if len(self._sets) < self._max_sets:
            self._sets.append(arrays)
        return arrays
