"""Windows of simulations that are each on one of several ranks: each is made once, whatever ranks go on, how often.

The ranks are a ledger and a buffer each. The steps come in any order, on each rank as far as they happen to be.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.buffers import Policy, Slots, WindowBuffer, WindowShape, num_slots_to_load, redeal
from stream_server.messages.client import Routing
from stream_server.messages.routing import Dealing
from stream_server.server.intake.ledger import Ledger
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.buffers.policies import POLICIES
from tests.buffers.test_windows import drain, drawn
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

SIMULATIONS = range(3)
VALUE = 1000
Window = tuple[int, ...]


def windows_of(shape: WindowShape, num_steps: int, missing: set[tuple[int, int]]) -> list[Window]:
    """All windows, by the parameters alone: the simulation, then the steps."""
    return sorted(
        (simulation, *steps)
        for simulation in SIMULATIONS
        for start in range(0, num_steps, shape.stride)
        if (steps := range(start, start + (shape.length - 1) * shape.spacing + 1, shape.spacing))[-1] < num_steps
        and not missing.intersection((simulation, step) for step in steps)
    )


@dataclass
class Study:
    """All ranks, one start after the other.

    `trained` are the windows that were drawn, `recorded` the steps, and `observed` the values in the statistics.
    """

    shape: WindowShape
    num_steps: int
    policy: str
    data: st.DataObject
    missing: set[tuple[int, int]]
    order: dict[int, list[int]]
    given_up: set[int]
    trained: list[Window] = field(default_factory=list)
    recorded: list[tuple[int, int]] = field(default_factory=list)
    observed: list[int] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    buffers: list[WindowBuffer] = field(default_factory=list)

    def dealing(self, num_ranks: int) -> Dealing:
        return Dealing(Routing.SIMULATIONS, num_ranks)

    def new_buffer(self, rank: int, num_slots: int = 300) -> WindowBuffer:
        slots = Slots({"u": ()}, num_slots)
        slots.allocate({"u": np.int64})
        return WindowBuffer(POLICIES[self.policy](4, rank), slots, shape=self.shape, most_kept=1000)

    def begin(self, num_ranks: int) -> None:
        self.ledgers = [Ledger() for _ in range(num_ranks)]
        self.buffers = [self.new_buffer(rank) for rank in range(num_ranks)]

    def go_on(self, num_ranks: int) -> None:
        """Save all ranks, and go on with so many."""
        saved: list[Any] = [save(buffer) for buffer in self.buffers]
        states = [from_bytes(to_bytes(ledger.state_dict())) for ledger in self.ledgers]
        policy: type[Policy] = type(self.buffers[0].policy)
        if len(saved) == num_ranks:
            for rank, (state, values) in enumerate(saved):
                self._load(rank, states[rank], state, values["u"])
            return
        dealt = redeal(
            [state for state, _ in saved],
            policy=policy,
            seeds=[(0, rank) for rank in range(num_ranks)],
        )
        self.ledgers, self.buffers = [None] * num_ranks, [None] * num_ranks  # type: ignore[list-item]
        for rank, share in enumerate(dealt):
            ledger = Ledger.redealt(states, rank, self.dealing(num_ranks))
            rows = zip(share.ranks.tolist(), share.rows.tolist(), strict=True)
            values = np.array([saved[old][1]["u"][row] for old, row in rows], np.int64)
            self._load(rank, from_bytes(to_bytes(ledger)), share.state, values)

    def _load(self, rank: int, ledger: Any, state: Any, values: Any) -> None:
        self.ledgers[rank] = Ledger()
        self.ledgers[rank].load_state_dict(ledger)
        self.buffers[rank] = self.new_buffer(rank, num_slots_to_load(state, capacity=4, planned=300))
        load(self.buffers[rank], state, {"u": values})

    def send(self, *, all_of_it: bool = False) -> None:
        """Each client sends the rank of its simulation what that lacks, as far as it comes."""
        for simulation in SIMULATIONS:
            rank = simulation % len(self.ledgers)
            settled = self.ledgers[rank][simulation].settled
            lacking = [step for step in self.order[simulation] if step not in settled]
            if all_of_it and simulation in self.given_up:
                continue
            num = len(lacking) if all_of_it else self.data.draw(st.integers(0, len(lacking)))
            for step in lacking[:num]:
                self._receive(rank, simulation, step)

    def _receive(self, rank: int, simulation: int, step: int) -> None:
        entry, buffer = self.ledgers[rank][simulation], self.buffers[rank]
        if (simulation, step) in self.missing:
            entry.reject(range(step, step + 1), "nonfinite")
            buffer.leave_out(simulation, step)
            return
        entry.accept(range(step, step + 1))
        [slot] = buffer.claim(1)
        slots = buffer.slots
        slots.simulation_ids[slot], slots.time_steps[slot], slots.arrays["u"][slot] = (
            simulation,
            step,
            VALUE * simulation + step,
        )
        buffer.enqueue([slot])
        self._admit(rank)

    def _admit(self, rank: int) -> int:
        admitted = self.buffers[rank].admit()
        slots = self.buffers[rank].slots
        self.recorded += [(int(slots.simulation_ids[it]), int(slots.time_steps[it])) for it in admitted]
        return len(admitted)

    def train(self) -> None:
        """Some ranks draw, if they can."""
        for rank, buffer in enumerate(self.buffers):
            if buffer.policy.ready(2) and self.data.draw(st.booleans()):
                self.trained += drawn(buffer, 2, self.observed)
                self._admit(rank)

    def finish(self) -> None:
        self.send(all_of_it=True)
        for rank, buffer in enumerate(self.buffers):
            while buffer.num_waiting:
                if not self._admit(rank):
                    self.trained += drawn(buffer, min(3, buffer.population), self.observed)
            self.trained += drain(buffer, self.observed)
            assert buffer.slots.num_free == buffer.slots.num_slots


@st.composite
def shapes(draw: st.DrawFn) -> WindowShape:
    length, spacing, stride = draw(st.integers(2, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return WindowShape(length=length, spacing=spacing, stride=stride)


@settings(max_examples=examples(100), deadline=None)
@given(
    data=st.data(),
    shape=shapes(),
    policy=st.sampled_from(sorted(POLICIES)),
    ranks=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    num_steps=st.integers(1, 24),
    in_order=st.booleans(),
)
def test_each_window_is_made_on_one_rank_whatever_ranks_go_on(
    data: st.DataObject, shape: WindowShape, policy: str, ranks: list[int], num_steps: int, in_order: bool
) -> None:
    keys = [(simulation, step) for simulation in SIMULATIONS for step in range(num_steps)]
    missing = data.draw(st.sets(st.sampled_from(keys), max_size=2))
    steps = list(range(num_steps))
    order = {it: steps if in_order else data.draw(st.permutations(steps)) for it in SIMULATIONS}
    given_up = data.draw(st.sets(st.sampled_from(SIMULATIONS), max_size=1))
    study = Study(shape, num_steps, policy, data, missing, order, given_up)
    study.begin(ranks[0])
    for num in ranks[1:]:
        study.send()
        study.train()
        study.go_on(num)
    study.finish()
    trained = [(of, *(value - VALUE * of for value in values)) for of, *values in study.trained]
    possible = windows_of(shape, num_steps, missing)
    expected = [window for window in possible if window[0] not in given_up or window in trained]
    assert sorted(trained) == expected
    used = {VALUE * of + step for of, *steps in expected for step in steps}
    assert len(study.observed) == len(set(study.observed))
    assert set(study.observed) <= used
    assert given_up or set(study.observed) == used
    accepted = [key for key in keys if key not in missing]
    assert sorted(it for it in study.recorded if it[0] not in given_up) == [
        it for it in accepted if it[0] not in given_up
    ]
    assert len(study.recorded) == len(set(study.recorded))
    for simulation in SIMULATIONS:
        num_windows = num_accepted = num_rejected = 0
        for ledger, buffer in zip(study.ledgers, study.buffers, strict=True):
            entry, windows = ledger[simulation], buffer.windows
            num_windows += windows.shape.num_among(entry.accepted())
            num_accepted += entry.num_accepted
            num_rejected += entry.num_rejected
        assert num_windows == sum(window[0] == simulation for window in expected)
        assert num_accepted == sum(it[0] == simulation for it in study.recorded)
        assert simulation in given_up or num_rejected == sum(of == simulation for of, _ in missing)
