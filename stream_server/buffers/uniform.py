"""A Reservoir that keeps as many samples of the beginning of the study as of its end.

Why: docs/decisions/0024-reservoir-eviction.md
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import SlotArray, State, distinct
from stream_server.buffers.reservoir import Reservoir

NUM_COMPARED = 16


class UniformReservoir(Reservoir):
    """A Reservoir whose seen samples are spread evenly over all that ever came.

    Where victims are drawn at random, what stays is young: after n further samples only exp(-n / capacity) of what
    was there is left. Here every sample draws a key when it comes, and of NUM_COMPARED seen samples the one with the
    largest key is evicted. If all were compared, the seen samples would be those with the smallest keys of all that
    ever came, which is a uniform sample of the stream (bottom-k sampling: Vitter, "Random Sampling with a
    Reservoir", 1985; Cohen and Kaplan, 2007). Each sample is drawn once at least, as from any Reservoir.
    """

    # By slot.
    _keys: npt.NDArray[np.float64] = np.empty(0)

    def put(self, slots: Sequence[int]) -> SlotArray:
        arrived = np.asarray(slots, np.intp)
        self._make_room(arrived)
        self._keys[arrived] = self._random.random(len(arrived))
        return super().put(slots)

    def state_dict(self) -> State:
        return {**super().state_dict(), "keys": self._keys[self.slots()]}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._make_room(self.slots())
        self._keys[self.slots()] = state["keys"]

    def _victims(self, num: int) -> SlotArray:
        compared = distinct(self._random, self._num_seen_in_front, min(self._num_seen_in_front, NUM_COMPARED * num))
        keys = self._keys[self._items[compared]]
        return compared[np.argpartition(keys, len(keys) - num)[len(keys) - num :]]

    def _make_room(self, slots: SlotArray) -> None:
        num = int(slots.max(initial=-1)) + 1
        if num > len(self._keys):
            self._keys = np.concatenate([self._keys, np.zeros(max(num, 2 * len(self._keys)) - len(self._keys))])
