"""The reservoirs: draws leave a sample in place, and newcomers push out samples that were drawn before.

Why: docs/decisions/0024-reservoir-eviction.md
"""

import math
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

NUM_COMPARED = 16


class Reservoir(Policy):
    """Draws uniformly over seen and unseen samples; evicts uniformly over the seen; never evicts an unseen one.

    The algorithm is that of Meyer et al., "High Throughput Training of Deep Surrogates from Large Ensemble Runs",
    SC'23 (arXiv 2309.16743). The samples of a batch are distinct. After `close` each draw removes.

    With `draws_per_sample` the number of draws is bounded and known: a batch is drawn only while
    draws ≤ draws_per_sample × inserts − population, samples are kept after `close` until no more than the
    population is left to draw, and all draws together are round(draws_per_sample × inserts).

    After `end_round` what the bound allows is drawn as ever, and then unseen samples alone: the seen ones stay.

    The seen samples stand in front of the unseen. What a draw has newly seen is only noted in `_fresh`, and moved to
    the front when the next eviction needs it, so that a draw costs five small array operations.
    """

    def __init__(self, *, capacity: int, watermark: int, draws_per_sample: float | None = None, seed: Seed) -> None:
        check_capacity(capacity, watermark)
        if draws_per_sample is not None and not 1 <= draws_per_sample < math.inf:
            raise ValueError(f"draws_per_sample must be a number of at least 1, but is {draws_per_sample}.")
        self.capacity = capacity
        self._watermark = watermark
        self._draws_per_sample = draws_per_sample
        self._random = generator(seed)
        self._items: SlotArray = np.empty(capacity, np.intp)
        self._seen: npt.NDArray[np.bool_] = np.zeros(capacity, bool)
        self._fresh: list[SlotArray] = []
        self._num_seen_in_front = 0
        self._num_seen = 0
        self._population = 0
        self._num_inserts = 0
        self._num_draws = 0
        self._closed = False
        self._is_round_over = False

    @property
    def draws_per_sample(self) -> float | None:
        return self._draws_per_sample

    @property
    def population(self) -> int:
        return self._population

    @property
    def num_unseen(self) -> int:
        return self._population - self._num_seen

    @property
    def room(self) -> int:
        return max(0, self.capacity - self.num_unseen)

    @property
    def num_left(self) -> int:
        if self._draws_per_sample is None or not self._population:
            return self._population
        return max(round(self._draws_per_sample * self._num_inserts) - self._num_draws, self.num_unseen)

    def ready(self, num: int) -> int:
        if self._closed:
            return even_share(self.num_left, min(num, self._population))
        if self._is_round_over:
            return even_share(self.num_unseen, num) if self._draws_unseen_alone else min(num, self._population)
        if self._population < self._watermark or self._population < num:
            return 0
        if self._draws_per_sample is not None and self._reuse_is_exhausted(self._draws_per_sample):
            return 0
        return num

    def put(self, slots: Sequence[int]) -> SlotArray:
        assert len(slots) <= self.room, "put without room"
        num_evicted = self._population + len(slots) - self.capacity
        evicted = self._evict(num_evicted) if num_evicted > 0 else NO_SLOTS
        start, stop = self._population, self._population + len(slots)
        self._items[start:stop] = slots
        self._seen[start:stop] = False
        self._population = stop
        self._num_inserts += len(slots)
        return evicted

    def draw(self, num: int) -> Drawn:
        assert num <= self._population, "draw of more than there is"
        num_kept = self.num_left - self._population if self._closed else num
        if self._draws_unseen_alone:
            self._move_seen_to_front()
            positions = distinct(self._random, self.num_unseen, num) + self._num_seen
        else:
            positions = distinct(self._random, self._population, num)
        # A third of the time of an index, which counts for small batches.
        slots = self._items.take(positions)
        seen = self._seen.take(positions)
        num_first = num - int(np.count_nonzero(seen))
        if num_first:
            self._fresh.append(positions[~seen])
            self._seen[positions] = True
            self._num_seen += num_first
        self._num_draws += num
        if num <= num_kept:
            return Drawn(slots, num_first, NO_SLOTS)
        return Drawn(slots, num_first, self._drain(positions, num - max(0, num_kept)))

    def slots(self) -> SlotArray:
        return self._items[: self._population].copy()

    def remove(self, slots: SlotArray) -> int:
        self._move_seen_to_front()
        stays = ~np.isin(self._items[: self._population], slots)
        num_removed = self._population - int(np.count_nonzero(stays))
        seen = self._seen[: self._population][stays]
        num_unseen = num_removed - (self._num_seen - int(np.count_nonzero(seen)))
        self._population -= num_removed
        self._items[: self._population] = self._items[: len(stays)][stays]
        self._seen[: self._population] = seen
        self._num_seen = self._num_seen_in_front = int(np.count_nonzero(seen))
        self._num_inserts -= num_unseen
        return num_unseen

    def close(self) -> SlotArray:
        if self._closed:
            return NO_SLOTS
        self._closed = True
        num_surplus = self._population - self.num_left
        return self._evict(num_surplus) if num_surplus > 0 else NO_SLOTS

    def end_round(self) -> SlotArray:
        self._is_round_over = True
        return NO_SLOTS

    def reopen(self) -> None:
        self._is_round_over = False
        if not self._closed:
            return
        self._closed = False
        # Draining did not keep the seen in front.
        num = self._population
        order = np.argsort(~self._seen[:num], kind="stable")
        self._items[:num] = self._items[order]
        self._seen[:num] = self._seen[order]
        self._fresh.clear()
        self._num_seen_in_front = self._num_seen

    def state_dict(self) -> State:
        # In one piece from now on, which changes nothing, so that the next time only what is new since is put together.
        self._fresh = [np.concatenate(self._fresh)] if self._fresh else []
        return {
            "slots": self.slots(),
            "seen": self._seen[: self._population].copy(),
            "fresh": self._fresh[0].copy() if self._fresh else NO_SLOTS,
            "num_seen_in_front": self._num_seen_in_front,
            "num_inserts": self._num_inserts,
            "num_draws": self._num_draws,
            "closed": self._closed,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: State) -> None:
        self._population = len(state["slots"])
        size = max(self.capacity, self._population)
        self._items, self._seen = np.empty(size, np.intp), np.zeros(size, bool)
        self._items[: self._population] = state["slots"]
        self._seen[: self._population] = state["seen"]
        self._fresh = [np.array(state["fresh"], np.intp)] if len(state["fresh"]) else []
        self._num_seen_in_front = state["num_seen_in_front"]
        self._num_seen = int(np.count_nonzero(self._seen))
        self._num_inserts = state["num_inserts"]
        self._num_draws = state["num_draws"]
        self._closed = state["closed"]
        self._random.bit_generator.state = state["random"]

    @staticmethod
    def with_other_bound(state: State, before: float | None, now: float) -> State:
        """See `Policy`. As many draws of those that have come are left as there were by the bound `before`.

        Without one none are, but in a closed buffer, whose samples were to be drawn once more.
        """
        if before is None:
            num_left = len(state["slots"]) if state["closed"] else 0
        else:
            num_left = round(before * state["num_inserts"]) - state["num_draws"]
        return {**state, "num_draws": round(now * state["num_inserts"]) - num_left}

    @classmethod
    def deal(cls, states: Sequence[State], seeds: Sequence[Seed]) -> list[State]:
        """Deal the samples so that every rank has as many, and as many that were drawn before, which stand in front."""
        derived = ("fresh", "num_seen_in_front")
        counted = [{name: value for name, value in state.items() if name not in derived} for state in states]
        dealt = deal_evenly(counted, seeds, order=lambda deck: ~deck["seen"])
        return [
            {**state, "fresh": NO_SLOTS, "num_seen_in_front": int(np.count_nonzero(state["seen"]))} for state in dealt
        ]

    @property
    def _draws_unseen_alone(self) -> bool:
        if not self._is_round_over or self._closed:
            return False
        return self._draws_per_sample is None or self._reuse_is_exhausted(self._draws_per_sample)

    def _reuse_is_exhausted(self, draws_per_sample: float) -> bool:
        # Without room only a draw can let the stream go on, whatever the counters of an earlier run say.
        return self.room > 0 and self._num_draws > draws_per_sample * self._num_inserts - self._population

    def _move_seen_to_front(self) -> None:
        """Bring what was drawn for the first time since the last eviction to the front."""
        if not self._fresh:
            return
        positions = np.concatenate(self._fresh)
        self._fresh.clear()
        start, stop = self._num_seen_in_front, self._num_seen_in_front + len(positions)
        self._seen[positions] = False
        exchange(positions, start, self._items)
        self._seen[start:stop] = True
        self._num_seen_in_front = stop

    def _evict(self, num: int) -> SlotArray:
        """Take `num` of the seen samples out, and close the gap with unseen ones from the end."""
        self._move_seen_to_front()
        start, stop = self._num_seen_in_front - num, self._num_seen_in_front
        exchange(self._victims(num), start, self._items)
        evicted = self._items[start:stop].copy()
        num_moved = min(num, self._population - stop)
        self._items[start : start + num_moved] = self._items[self._population - num_moved : self._population]
        self._seen[start:stop] = False
        self._num_seen_in_front = start
        self._num_seen -= num
        self._population -= num
        return evicted

    def _victims(self, num: int) -> SlotArray:
        """The positions of seen samples that are to go."""
        return distinct(self._random, self._num_seen_in_front, num)

    def _drain(self, positions: SlotArray, num: int) -> SlotArray:
        """Take `num` of the drawn positions out; nothing is evicted any more, so the order within `_items` is free."""
        chosen = positions if num == len(positions) else self._random.permutation(positions)[:num]
        removed = self._items[chosen]
        self._fresh.clear()
        self._num_seen -= num
        self._population -= num
        exchange(chosen, self._population, self._items, self._seen)
        return removed


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
