"""Small steps on their way to becoming one message."""

from collections.abc import Sequence

import numpy as np

from stream_server.client_api.messages import Block


class PendingSteps:
    """Neighbouring steps with the same fields, copied side by side: one array per block, one row per step.

    The memory is allocated once and stays warm. `num` steps are in it, the first with index `index`, the
    others `stride` apart.
    """

    def __init__(self, blocks: Sequence[Block], *, capacity: int, stride: int) -> None:
        self.num = 0
        self.index = 0
        self.present = 0
        self._capacity = capacity
        self._stride = stride
        self._rows = [np.empty((capacity, *block.count), block.dtype) for block in blocks]
        self._used: list[np.ndarray] = []

    @property
    def indices(self) -> range:
        return range(self.index, self.index + self.num * self._stride, self._stride)

    @property
    def is_full(self) -> bool:
        return self.num == self._capacity

    def fits(self, index: int, present: int) -> bool:
        """Whether this step continues the others."""
        return self.num == 0 or (present == self.present and index == self.index + self.num * self._stride)

    def add(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a step that `fits`; `arrays` are those of the blocks in `present`, in order."""
        if self.num == 0:
            self.index, self.present = index, present
            self._used = [rows for i, rows in enumerate(self._rows) if present >> i & 1]
        for rows, array in zip(self._used, arrays, strict=True):
            rows[self.num] = array
        self.num += 1

    def take(self) -> list[np.ndarray]:
        """The payload of all steps, to be copied before the next `add`; none is pending any more."""
        payload = [rows[: self.num] for rows in self._used]
        self.num = 0
        return payload
