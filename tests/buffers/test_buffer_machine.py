"""The Buffer against a model of who owns each slot, with rows that show whether anyone wrote what he should not."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.buffers import Buffer, Draw, Slots
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES

NUM_SLOTS = 14


class BufferMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)), capacity=st.integers(3, NUM_SLOTS), seed=st.integers(0, 99))
    def build(self, policy: str, capacity: int, seed: int) -> None:
        self.buffer = Buffer(POLICIES[policy](capacity, seed), Slots({"u": (3,)}, NUM_SLOTS))
        self.buffer.slots.allocate({"u": np.int64})
        self.claimed: list[int] = []
        self.waiting: list[int] = []
        self.draws: list[tuple[Draw, list[int]]] = []
        self.num_samples = self.num_first = self.num_discarded = self.num_withdrawn = 0
        self.closed = False

    @precondition(lambda self: not self.closed)
    @rule(num=st.integers(1, 6))
    def claim(self, num: int) -> None:
        num_free = self.buffer.slots.num_free
        claimed = self.buffer.claim(num)
        assert len(claimed) == (num if num <= num_free else 0)
        for slot in claimed:
            self.buffer.slots.arrays["u"][slot] = self.num_samples
            self.buffer.slots.simulation_ids[slot] = self.num_samples % 3
            self.num_samples += 1
        self.claimed += claimed

    @precondition(lambda self: self.claimed)
    @rule(num=st.integers(1, 6))
    def discard(self, num: int) -> None:
        self.buffer.discard(self.claimed[:num])
        self.num_discarded += len(self.claimed[:num])
        del self.claimed[:num]

    @precondition(lambda self: self.claimed and not self.closed)
    @rule(num=st.integers(1, 6))
    def commit(self, num: int) -> None:
        self.buffer.commit(self.claimed[:num])
        self.waiting += self.claimed[:num]
        del self.claimed[:num]

    @rule()
    def admit(self) -> None:
        admitted = self.buffer.admit()
        assert admitted == self.waiting[: len(admitted)]
        del self.waiting[: len(admitted)]
        assert not self.waiting or not self.buffer.policy.room

    @rule(num=st.integers(1, 3))
    def draw(self, num: int) -> None:
        try:
            draw = self.buffer.draw(num, 0.0)
        except Closed:
            assert self.closed
            return
        if draw is not None:
            self.num_first += draw.num_first
            self.draws.append((draw, self.buffer.gather(draw)["u"][:, 0].tolist()))

    @precondition(lambda self: self.draws)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        draw, _ = self.draws.pop(data.draw(st.integers(0, len(self.draws) - 1)))
        self.buffer.release(draw)

    @precondition(lambda self: not self.closed)
    @rule(simulation_id=st.integers(0, 2))
    def withdraw(self, simulation_id: int) -> None:
        ids = self.buffer.slots.simulation_ids
        self.waiting = [slot for slot in self.waiting if ids[slot] != simulation_id]
        self.num_withdrawn += self.buffer.withdraw(simulation_id)
        assert simulation_id not in self.buffer.contents().simulation_ids

    @precondition(lambda self: not self.waiting and self.num_samples > 20)
    @rule()
    def close(self) -> None:
        self.buffer.close()
        self.closed = True

    @invariant()
    def each_slot_has_one_owner(self) -> None:
        slots = self.buffer.slots
        owned = sorted([*slots._free, *self.claimed, *self.waiting, *self.buffer.policy.slots().tolist()])
        assert len(set(owned)) == len(owned)
        assert len(owned) + self.buffer._pins.num_retired == NUM_SLOTS

    @invariant()
    def the_rows_of_a_draw_stay_as_they_were(self) -> None:
        for draw, samples in self.draws:
            assert self.buffer.gather(draw)["u"].tolist() == [[sample] * 3 for sample in samples]

    @invariant()
    def the_account_balances(self) -> None:
        left = len(self.claimed) + len(self.waiting) + self.buffer.num_unseen
        assert self.num_samples == self.num_discarded + self.num_withdrawn + self.num_first + left


TestBufferBehavesAsItsModel = BufferMachine.TestCase
TestBufferBehavesAsItsModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
