"""First in, random out: every sample is drawn `pseudo_epochs` times, in random order, and then removed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import (
    NO_SLOTS,
    Drawn,
    Policy,
    Seed,
    SlotArray,
    State,
    check_capacity,
    deal_evenly,
    distinct,
    even_share,
    exchange,
    generator,
)


class Firo(Policy):
    """Draws uniformly once `watermark` samples wait; when it is full there is no room.

    The samples of a batch are distinct, except in the last batches of a closed buffer that holds fewer samples
    than the batch has rows: there each row is one of the draws that are left.
    """

    def __init__(self, *, capacity: int, watermark: int, pseudo_epochs: int = 1, seed: Seed) -> None:
        check_capacity(capacity, watermark)
        if pseudo_epochs < 1:
            raise ValueError(f"pseudo_epochs must be at least 1, but is {pseudo_epochs}.")
        self.capacity = capacity
        self._watermark = watermark
        self._pseudo_epochs = pseudo_epochs
        self._random = generator(seed)
        self._items: SlotArray = np.empty(capacity, np.intp)
        self._draws_left: npt.NDArray[np.int64] = np.empty(capacity, np.int64)
        self._population = 0
        self._num_left = 0
        self._closed = False

    @property
    def draws_per_sample(self) -> float:
        return float(self._pseudo_epochs)

    @property
    def population(self) -> int:
        return self._population

    @property
    def num_unseen(self) -> int:
        return int(np.count_nonzero(self._draws_left[: self._population] == self._pseudo_epochs))

    @property
    def room(self) -> int:
        return max(0, self.capacity - self._population)

    @property
    def num_left(self) -> int:
        return self._num_left

    def ready(self, num: int) -> int:
        if self._closed:
            return even_share(self._num_left, num)
        return num if self._population >= max(self._watermark, num) else 0

    def put(self, slots: Sequence[int]) -> SlotArray:
        assert len(slots) <= self.room, "put without room"
        start, stop = self._population, self._population + len(slots)
        self._items[start:stop] = slots
        self._draws_left[start:stop] = self._pseudo_epochs
        self._population = stop
        self._num_left += len(slots) * self._pseudo_epochs
        return NO_SLOTS

    def draw(self, num: int) -> Drawn:
        assert num <= self._num_left, "draw of more than there is"
        if num > self._population:
            return self._draw_repeated(num)
        positions = distinct(self._random, self._population, num)
        slots = self._items[positions]
        self._num_left -= num
        if self._pseudo_epochs == 1:
            self._drop(positions)
            return Drawn(slots, num, slots)
        left = self._draws_left[positions]
        num_first = int(np.count_nonzero(left == self._pseudo_epochs))
        self._draws_left[positions] = left - 1
        last = left == 1
        self._drop(positions[last])
        return Drawn(slots, num_first, slots[last])

    def slots(self) -> SlotArray:
        return self._items[: self._population].copy()

    def remove(self, slots: SlotArray) -> int:
        positions = np.flatnonzero(np.isin(self._items[: self._population], slots))
        left = self._draws_left[positions]
        self._num_left -= int(left.sum())
        self._drop(positions)
        return int(np.count_nonzero(left == self._pseudo_epochs))

    def close(self) -> SlotArray:
        self._closed = True
        return NO_SLOTS

    def reopen(self) -> None:
        self._closed = False

    def state_dict(self) -> State:
        return {
            "slots": self.slots(),
            "draws_left": self._draws_left[: self._population].copy(),
            "closed": self._closed,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: State) -> None:
        self._population = len(state["slots"])
        size = max(self.capacity, self._population)
        self._items, self._draws_left = np.empty(size, np.intp), np.empty(size, np.int64)
        self._items[: self._population] = state["slots"]
        self._draws_left[: self._population] = state["draws_left"]
        self._num_left = int(self._draws_left[: self._population].sum())
        self._closed = state["closed"]
        self._random.bit_generator.state = state["random"]

    @classmethod
    def deal(cls, states: Sequence[State], seeds: Sequence[Seed]) -> list[State]:
        """Deal the samples so that every rank has as many, and as many draws left."""
        return deal_evenly(states, seeds, order=lambda deck: deck["draws_left"])

    def _draw_repeated(self, num: int) -> Drawn:
        before = self._draws_left[: self._population].copy()
        tickets = np.repeat(np.arange(self._population), before)
        chosen = self._random.choice(tickets, num, replace=False)
        after = before - np.bincount(chosen, minlength=self._population)
        slots = self._items[chosen]
        num_first = int(np.count_nonzero((before == self._pseudo_epochs) & (after < before)))
        self._draws_left[: self._population] = after
        self._num_left -= num
        finished = np.flatnonzero(after == 0)
        removed = self._items[finished]
        self._drop(finished)
        return Drawn(slots, num_first, removed)

    def _drop(self, positions: SlotArray) -> None:
        self._population -= len(positions)
        exchange(positions, self._population, self._items, self._draws_left)
