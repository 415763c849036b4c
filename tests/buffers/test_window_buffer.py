"""The buffer of windows against a set comprehension over the steps that came, and a model of who uses each slot."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.buffers import Draw, Frozen, Slots, WindowBuffer, WindowShape, num_slots_to_load
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import load, stored
from tests.support.examples import examples

UNDER_WAY = 5
SPARE = 5
BATCH = 3
HELD = 2
NUM_SIMULATIONS = 3

Window = tuple[int, ...]


def windows_of(shape: WindowShape, steps: set[int]) -> set[int]:
    """The windows that these steps make, by their first steps: the definition."""
    return {
        start
        for start in range(0, max(steps, default=0) + 1, shape.stride)
        if all(step in steps for step in shape.steps(start))
    }


class WindowBufferMachine(RuleBasedStateMachine):
    """Steps of three simulations in any order; at most `UNDER_WAY` of them are claimed or wait.

    `taken` are the steps that came in, `drawn` how often each window was drawn.
    """

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        capacity=st.integers(3, 10),
        seed=st.integers(0, 99),
        shape=st.builds(
            WindowShape,
            length=st.integers(2, 4),
            spacing=st.integers(1, 2),
            stride=st.integers(1, 3),
            num_steps=st.sampled_from([None, 12]),
        ),
        most_kept=st.sampled_from([4, 1000]),
    )
    def build(self, policy: str, capacity: int, seed: int, shape: WindowShape, most_kept: int) -> None:
        self.policy, self.shape, self.most_kept = policy, shape, most_kept
        self.buffer = self.new_buffer(capacity, seed, self.planned(capacity))
        self.to_come = {simulation: list(range(12)) for simulation in range(NUM_SIMULATIONS)}
        self.waiting: list[int] = []
        self.came: dict[int, set[int]] = {simulation: set() for simulation in range(NUM_SIMULATIONS)}
        self.withdrawn: set[int] = set()
        self.draws: list[tuple[Draw, list[list[int]]]] = []
        self.drawn: set[tuple[int, int]] = set()
        self.num_first = self.num_withdrawn = 0
        self.frozen: Frozen | None = None
        self.frozen_rows: list[list[int]] = []
        self.num_written = 0
        self.closed = False

    def planned(self, capacity: int) -> int:
        length = self.shape.length
        return capacity * length + min(self.most_kept, 36) + UNDER_WAY + SPARE + HELD * BATCH * length + 2 * length

    def new_buffer(self, capacity: int, seed: int, num_slots: int) -> WindowBuffer:
        slots = Slots({"u": ()}, num_slots)
        slots.allocate({"u": np.int64})
        policy = POLICIES[self.policy](capacity, seed)
        return WindowBuffer(policy, slots, shape=self.shape, most_kept=self.most_kept, spare=SPARE)

    def value(self, simulation: int, step: int) -> int:
        return 100 * simulation + step

    def samples(self, draw: Draw) -> list[list[int]]:
        return self.buffer.gather(draw)["u"].tolist()  # type: ignore[no-any-return]

    @precondition(lambda self: not self.closed and len(self.waiting) < UNDER_WAY)
    @rule(simulation=st.integers(0, NUM_SIMULATIONS - 1), place=st.sampled_from([0, 0, 0, 0, 1, 2, -1]))
    def send(self, simulation: int, place: int) -> None:
        left = self.to_come[simulation]
        if not left:
            return
        step = left.pop(place if abs(place) < len(left) else 0)
        [slot] = self.buffer.claim(1) or [-1]
        assert slot >= 0, "a step inside its credit has no slot"
        self.buffer.slots.simulation_ids[slot], self.buffer.slots.time_steps[slot] = simulation, step
        self.buffer.slots.arrays["u"][slot] = self.value(simulation, step)
        self.buffer.enqueue([slot])
        self.waiting.append(slot)
        self.came[simulation].add(step)

    @precondition(lambda self: not self.closed)
    @rule(simulation=st.integers(0, NUM_SIMULATIONS - 1))
    def leave_out(self, simulation: int) -> None:
        if self.to_come[simulation]:
            self.buffer.leave_out(simulation, self.to_come[simulation].pop(0))

    @precondition(lambda self: not self.closed)
    @rule(simulation=st.integers(0, NUM_SIMULATIONS - 1))
    def end(self, simulation: int) -> None:
        self.to_come[simulation].clear()
        self.buffer.end([simulation])

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
        if draw is None:
            return
        samples = self.samples(draw)
        for sample in samples:
            simulation, start = divmod(sample[0], 100)
            assert sample == [self.value(simulation, step) for step in self.shape.steps(start)]
            assert start in windows_of(self.shape, self.came[simulation])
            self.drawn.add((simulation, start))
        self.num_first += draw.num_first
        self.draws.append((draw, samples))

    @precondition(lambda self: self.draws)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        draw, _ = self.draws.pop(data.draw(st.integers(0, len(self.draws) - 1)))
        self.buffer.release(draw)

    @precondition(lambda self: not self.closed)
    @rule(simulation=st.integers(0, NUM_SIMULATIONS - 1))
    def withdraw(self, simulation: int) -> None:
        ids = self.buffer.slots.simulation_ids
        self.waiting = [slot for slot in self.waiting if ids[slot] != simulation]
        self.num_withdrawn += self.buffer.withdraw(simulation)
        self.to_come[simulation].clear()
        assert simulation not in self.buffer.contents().simulation_ids

    @precondition(lambda self: not self.waiting and sum(map(len, self.came.values())) > 15)
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
        self.frozen_rows = self.buffer.slots.arrays["u"][frozen.slots].tolist()

    @precondition(lambda self: self.frozen is not None)
    @rule(num=st.integers(1, 6))
    def write(self, num: int) -> None:
        assert self.frozen is not None
        start, stop = self.num_written, min(self.num_written + num, len(self.frozen))
        assert self.frozen.rows("u", start, stop).tolist() == self.frozen_rows[start:stop]
        self.buffer.thaw(self.frozen, start, stop)
        self.num_written = stop
        if stop == len(self.frozen):
            self.frozen = None

    @rule(capacity=st.integers(3, 10), seed=st.integers(0, 99))
    def restart(self, capacity: int, seed: int) -> None:
        frozen = self.buffer.freeze()
        state, rows = stored(frozen.state()), self.buffer.slots.gather(frozen.slots)
        num_slots = num_slots_to_load(state, capacity=capacity, planned=self.planned(capacity))
        self.buffer = self.new_buffer(capacity, seed, num_slots)
        load(self.buffer, state, rows)
        self.frozen, self.waiting = None, state["backlog"].tolist()
        for number, (draw, samples) in enumerate(sorted(self.draws, key=lambda it: it[0].ticket)):
            restored = self.buffer.take_restored()
            assert restored is not None
            assert restored.num_first == draw.num_first
            self.draws[number] = restored, samples

    @invariant()
    def each_slot_that_is_not_free_is_used(self) -> None:
        buffer, retention = self.buffer, self.buffer._retention
        windows = [*buffer.policy.slots(), *buffer._complete, *buffer._pins._retired]
        used = {*buffer.rows_of(np.array(windows, np.intp)).reshape(-1).tolist(), *buffer._backlog}
        used.update(buffer.windows.kept().tolist())
        retained = set() if retention is None else set(np.flatnonzero(retention._retained).tolist())
        assert len(set(buffer.slots._free)) == buffer.slots.num_free
        assert set(buffer.slots._free) == set(range(buffer.slots.num_slots)) - used - retained
        assert buffer.windows.num_used == len(used) - len(set(buffer._backlog[buffer._num_taken :]))
        assert len(buffer.windows.kept()) <= self.most_kept

    @invariant()
    def a_step_is_kept_only_for_windows_that_may_still_be_made(self) -> None:
        for slot in self.buffer.windows.kept().tolist():
            simulation, step = divmod(int(self.buffer.slots.arrays["u"][slot]), 100)
            if simulation in self.buffer._ended:
                # Its end takes effect when its steps in the backlog are taken in.
                continue
            come = self.came[simulation] - {
                int(self.buffer.slots.time_steps[it])
                for it in self.buffer._backlog[self.buffer._num_taken :]
                if self.buffer.slots.simulation_ids[it] == simulation
            }
            possible = self.came[simulation] | set(self.to_come[simulation])
            if self.shape.num_steps is None:
                possible |= set(range(12, 40))
            starts = self.shape.starts(step)
            assert any(
                set(self.shape.steps(start)) <= possible and not set(self.shape.steps(start)) <= come
                for start in starts
            ), (simulation, step)

    @invariant()
    def the_windows_that_are_drawn_stay_as_they_were(self) -> None:
        for draw, samples in self.draws:
            assert self.samples(draw) == samples

    @invariant()
    def frozen_rows_stay_as_they_were(self) -> None:
        if self.frozen is not None:
            left = self.frozen.slots[self.num_written :]
            assert self.buffer.slots.arrays["u"][left].tolist() == self.frozen_rows[self.num_written :]

    @invariant()
    def exactly_the_windows_whose_steps_all_came_are_made(self) -> None:
        expected = sum(len(windows_of(self.shape, steps)) for steps in self.came.values())
        num_late = self.buffer.windows.num_late.total()
        assert num_late == 0 or self.most_kept < 1000
        known = self.num_first + self.num_withdrawn + self.buffer.num_never_drawn
        assert expected == known + num_late or (self.most_kept < 1000 and expected >= known)


TestWindowBufferBehavesAsItsModel: Any = WindowBufferMachine.TestCase
TestWindowBufferBehavesAsItsModel.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
