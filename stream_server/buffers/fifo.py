"""First in, first out: every sample is drawn once, in the order of arrival."""

from collections.abc import Sequence

import numpy as np

from stream_server.buffers.policy import NO_SLOTS, Drawn, Policy, SlotArray, State, check_capacity, even_share


class Fifo(Policy):
    """A queue of slots in a ring; when it is full there is no room."""

    def __init__(self, *, capacity: int) -> None:
        check_capacity(capacity, 1)
        self.capacity = capacity
        self._ring: SlotArray = np.empty(capacity, np.intp)
        self._head = 0
        self._population = 0
        self._closed = False

    @property
    def draws_per_sample(self) -> float:
        return 1.0

    @property
    def population(self) -> int:
        return self._population

    @property
    def num_unseen(self) -> int:
        return self._population

    @property
    def room(self) -> int:
        return max(0, self.capacity - self._population)

    @property
    def num_left(self) -> int:
        return self._population

    def ready(self, num: int) -> int:
        if self._closed:
            return even_share(self._population, num)
        return num if self._population >= num else 0

    def put(self, slots: Sequence[int]) -> SlotArray:
        assert len(slots) <= self.room, "put without room"
        self._ring[self._places(self._population, len(slots))] = slots
        self._population += len(slots)
        return NO_SLOTS

    def draw(self, num: int) -> Drawn:
        assert num <= self._population, "draw of more than there is"
        slots = self._ring[self._places(0, num)]
        self._head = (self._head + num) % len(self._ring)
        self._population -= num
        return Drawn(slots, num, slots)

    def slots(self) -> SlotArray:
        stop = self._head + self._population
        beyond = max(0, stop - len(self._ring))
        return np.concatenate([self._ring[self._head : stop], self._ring[:beyond]])

    def remove(self, slots: SlotArray) -> int:
        kept = self.slots()
        kept = kept[~np.isin(kept, slots)]
        num_removed = self._population - len(kept)
        self._fill(kept)
        return num_removed

    def close(self) -> SlotArray:
        self._closed = True
        return NO_SLOTS

    def reopen(self) -> None:
        self._closed = False

    def state_dict(self) -> State:
        return {"slots": self.slots(), "closed": self._closed}

    def load_state_dict(self, state: State) -> None:
        self._fill(state["slots"])
        self._closed = state["closed"]

    def _places(self, first: int, num: int) -> SlotArray:
        return np.arange(self._head + first, self._head + first + num) % len(self._ring)

    def _fill(self, slots: SlotArray) -> None:
        self._ring = np.empty(max(self.capacity, len(slots)), np.intp)
        self._ring[: len(slots)] = slots
        self._head = 0
        self._population = len(slots)
