"""The Buffer against a model of who owns each slot, with rows that show whether anyone wrote what he should not."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.buffers import Buffer, Draw, Frozen, Slots, num_slots_to_load
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import load, stored
from tests.support.examples import examples

WINDOW = 5
SPARE = 5
BATCH = 3
HELD = 2


class BufferMachine(RuleBasedStateMachine):
    """At most `WINDOW` samples are claimed or waiting, and at most `HELD` draws out: the plan has slots for that."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), capacity=st.integers(3, 14), seed=st.integers(0, 99))
    def build(self, policy: str, capacity: int, seed: int) -> None:
        self.policy = policy
        self.buffer = self.new_buffer(capacity, seed, capacity + WINDOW + SPARE + HELD * BATCH)
        self.claimed: list[int] = []
        self.waiting: list[int] = []
        self.draws: list[tuple[Draw, list[int]]] = []
        self.frozen: Frozen | None = None
        self.frozen_rows: list[list[int]] = []
        self.num_written = 0
        self.num_samples = self.num_first = self.num_discarded = self.num_withdrawn = 0
        self.closed = False

    def new_buffer(self, capacity: int, seed: int, num_slots: int) -> Buffer:
        slots = Slots({"u": (3,)}, num_slots)
        slots.allocate({"u": np.int64})
        return Buffer(POLICIES[self.policy](capacity, seed), slots, spare=SPARE)

    def rows(self, slots: Any) -> list[list[int]]:
        store, index = self.buffer.slots, np.asarray(slots, np.intp)
        assert (store.simulation_ids[index] == store.time_steps[index] % 3).all()
        return np.column_stack([store.time_steps[index], store.arrays["u"][index]]).tolist()

    @precondition(lambda self: not self.closed and len(self.claimed) + len(self.waiting) < WINDOW)
    @rule(num=st.integers(1, WINDOW))
    def claim(self, num: int) -> None:
        num = min(num, WINDOW - len(self.claimed) - len(self.waiting))
        claimed = self.buffer.claim(num)
        assert len(claimed) == num, "a step within its credit has no slot"
        for slot in claimed:
            self.buffer.slots.arrays["u"][slot] = self.num_samples
            self.buffer.slots.simulation_ids[slot] = self.num_samples % 3
            self.buffer.slots.time_steps[slot] = self.num_samples
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
        self.buffer.enqueue(self.claimed[:num])
        self.waiting += self.claimed[:num]
        del self.claimed[:num]

    @rule()
    def admit(self) -> None:
        admitted = self.buffer.admit()
        assert admitted == self.waiting[: len(admitted)]
        del self.waiting[: len(admitted)]
        assert not self.waiting or not self.buffer.policy.room or self.frozen is not None

    @precondition(lambda self: len(self.draws) < HELD)
    @rule(num=st.integers(1, BATCH))
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

    @rule()
    def freeze(self) -> None:
        given_up, frozen = self.frozen, self.buffer.freeze()
        if given_up is not None:
            self.buffer.thaw_all(given_up)
        self.frozen, self.num_written = frozen, 0
        self.frozen_rows = self.rows(frozen.slots)

    @precondition(lambda self: self.frozen is not None)
    @rule(num=st.integers(1, 6))
    def write(self, num: int) -> None:
        assert self.frozen is not None
        start, stop = self.num_written, min(self.num_written + num, len(self.frozen))
        assert self.frozen.rows("u", start, stop)[:, 0].tolist() == [row[0] for row in self.frozen_rows[start:stop]]
        assert self.frozen.state()["time_steps"].tolist() == [row[0] for row in self.frozen_rows]
        self.buffer.thaw(self.frozen, start, stop)
        self.num_written = stop
        if stop == len(self.frozen):
            self.frozen = None

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def fail_to_write(self) -> None:
        assert self.frozen is not None
        self.buffer.thaw_all(self.frozen)
        self.frozen = None

    @rule(capacity=st.integers(3, 14), seed=st.integers(0, 99))
    def restart(self, capacity: int, seed: int) -> None:
        frozen = self.buffer.freeze()
        state, rows = stored(frozen.state()), self.buffer.slots.gather(frozen.slots)
        planned = capacity + WINDOW + SPARE + HELD * BATCH
        self.buffer = self.new_buffer(capacity, seed, num_slots_to_load(state, capacity=capacity, planned=planned))
        load(self.buffer, state, rows)
        self.frozen = None
        self.num_discarded += len(self.claimed)
        self.claimed, self.waiting = [], state["backlog"].tolist()
        for number, (draw, samples) in enumerate(sorted(self.draws, key=lambda it: it[0].ticket)):
            restored = self.buffer.take_restored()
            assert restored is not None
            assert restored.num_first == draw.num_first
            self.draws[number] = restored, samples
        assert self.buffer.take_restored() is None

    @invariant()
    def each_slot_has_one_owner(self) -> None:
        slots, retention = self.buffer.slots, self.buffer._retention
        owned = sorted([*slots._free, *self.claimed, *self.waiting, *self.buffer.policy.slots().tolist()])
        assert len(set(owned)) == len(owned)
        num_retained = 0 if retention is None else retention.num_retained
        assert len(owned) + len(self.buffer._pins._retired) + num_retained == slots.num_slots

    @invariant()
    def the_rows_of_a_draw_stay_as_they_were(self) -> None:
        for draw, samples in self.draws:
            assert self.buffer.gather(draw)["u"].tolist() == [[sample] * 3 for sample in samples]

    @invariant()
    def frozen_rows_stay_as_they_were(self) -> None:
        if self.frozen is not None:
            left = self.frozen.slots[self.num_written :]
            assert self.rows(left) == self.frozen_rows[self.num_written :]
            assert set(left.tolist()).isdisjoint([*self.buffer.slots._free, *self.claimed])
        else:
            assert self.buffer._retention is None

    @invariant()
    def the_account_balances(self) -> None:
        left = len(self.claimed) + len(self.waiting) + self.buffer.num_unseen
        assert self.num_samples == self.num_discarded + self.num_withdrawn + self.num_first + left


TestBufferBehavesAsItsModel = BufferMachine.TestCase
TestBufferBehavesAsItsModel.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
