"""Windows in single cases: which there are, what waits, what is freed, and how they are dealt to other ranks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.buffers import Fifo, Policy, Reservoir, Slots, WindowBuffer, WindowShape, num_slots_to_load, redeal
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

SHAPES = st.builds(
    WindowShape,
    length=st.integers(2, 4),
    spacing=st.integers(1, 3),
    stride=st.integers(1, 5),
    num_steps=st.sampled_from([None, 14]),
)
THREE = WindowShape(length=3)
NUM_STEPS = 14


def oracle(shape: WindowShape, steps: Iterable[int]) -> set[int]:
    """The first steps of the windows that these steps make."""
    came = set(steps)
    return {start for start in came if start % shape.stride == 0 and came.issuperset(shape.steps(start))}


def new_buffer(
    policy: Policy, shape: WindowShape = THREE, *, num_slots: int = 200, most_kept: int = 1000
) -> WindowBuffer:
    slots = Slots({"u": ()}, num_slots)
    slots.allocate({"u": np.int64})
    return WindowBuffer(policy, slots, shape=shape, most_kept=most_kept)


def send(buffer: WindowBuffer, simulation: int, *steps: int) -> list[int]:
    """Send steps; gives how many of those that waited, or are sent now, are admitted."""
    for step in steps:
        [slot] = buffer.claim(1)
        slots = buffer.slots
        slots.simulation_ids[slot], slots.time_steps[slot], slots.arrays["u"][slot] = simulation, step, step
        buffer.enqueue([slot])
    return buffer.admit()


def drain(buffer: WindowBuffer, observed: list[int] | None = None) -> list[tuple[int, ...]]:
    """The simulation and steps of each window that is drawn for the first time; `observed` as for `drawn`."""
    found = []
    while buffer.num_waiting:
        if not buffer.admit():
            found += drawn(buffer, min(3, buffer.population), observed)
    buffer.close()
    try:
        while True:
            found += drawn(buffer, min(3, buffer.capacity), observed)
    except Closed:
        return found


def drawn(buffer: WindowBuffer, num: int, observed: list[int] | None = None) -> list[tuple[int, ...]]:
    """The windows of a draw that were never drawn before; `observed` is given the values that it observes."""
    draw = buffer.draw(num, 0.0)
    assert draw is not None
    if observed is not None:
        observed += buffer.slots.arrays["u"][buffer.observe(draw)].tolist()
    first = dict.fromkeys(slot for slot in draw.slots.tolist() if buffer.slots.seen[slot] <= (draw.slots == slot).sum())
    simulations, windows = buffer.slots.simulation_ids[list(first)], buffer.slots.arrays["u"][buffer.rows_of([*first])]
    buffer.release(draw)
    return [(simulation, *window) for simulation, window in zip(simulations.tolist(), windows.tolist(), strict=True)]


@given(shape=SHAPES, steps=st.sets(st.integers(0, NUM_STEPS - 1)), data=st.data())
def test_the_windows_are_those_whose_steps_all_came_in_whatever_order(
    shape: WindowShape, steps: set[int], data: st.DataObject
) -> None:
    expected = oracle(shape, steps)
    assert shape.num_among(np.array(sorted(steps), np.int64)) == len(expected)
    buffer = new_buffer(Fifo(capacity=100), shape)
    for step in data.draw(st.permutations(sorted(steps))):
        send(buffer, 7, step)
    assert sorted(drain(buffer)) == sorted((7, *shape.steps(start)) for start in expected)
    assert buffer.slots.num_free == buffer.slots.num_slots


def test_labels_that_do_not_count_from_0_make_the_same_windows() -> None:
    buffer = new_buffer(Fifo(capacity=100), WindowShape(length=2, stride=2, first=10, every=5, num_steps=5))
    send(buffer, 0, 10, 15, 20, 25, 30)
    assert drain(buffer) == [(0, 10, 15), (0, 20, 25)]


def test_a_step_that_makes_no_window_is_admitted_beside_a_full_buffer() -> None:
    """Otherwise its simulation could not send those that the window waits for."""
    buffer = new_buffer(Fifo(capacity=2))
    assert len(send(buffer, 0, 0, 1, 2, 3)) == 4
    assert buffer.policy.room == 0
    assert len(send(buffer, 1, 0, 1)) == 2
    assert send(buffer, 1, 2) == []
    assert drawn(buffer, 1) == [(0, 0, 1, 2)]
    assert len(buffer.admit()) == 1


def test_a_step_that_makes_several_windows_is_admitted_with_the_last_of_them() -> None:
    buffer = new_buffer(Fifo(capacity=2))
    assert len(send(buffer, 0, 0, 1, 3, 4)) == 4
    assert send(buffer, 0, 2) == []
    assert (buffer.population, buffer.num_made, buffer.num_never_drawn) == (2, 1, 3)
    assert drawn(buffer, 1) == [(0, 0, 1, 2)]
    assert len(buffer.admit()) == 1
    assert drain(buffer) == [(0, 1, 2, 3), (0, 2, 3, 4)]


def test_an_evicted_window_frees_the_steps_that_it_alone_has() -> None:
    buffer = new_buffer(Reservoir(capacity=2, watermark=1, seed=0))
    send(buffer, 0, 0, 1, 2, 3)
    buffer.end([0])
    in_use = buffer.slots.num_slots - buffer.slots.num_free
    assert in_use == 4
    for _ in range(20):
        drawn(buffer, 2)
    send(buffer, 1, 0, 1, 2)
    buffer.end([1])
    assert buffer.slots.num_slots - buffer.slots.num_free == 3 + 3


def test_what_waits_for_a_step_that_was_rejected_is_free() -> None:
    buffer = new_buffer(Fifo(capacity=9))
    send(buffer, 0, 0, 1)
    assert len(buffer.windows.kept()) == 2
    buffer.leave_out(0, 2)
    assert buffer.slots.num_free == buffer.slots.num_slots


def test_a_step_of_a_window_that_was_given_up_may_be_left_out_while_another_window_waits() -> None:
    buffer = new_buffer(Fifo(capacity=9), WindowShape(length=2))
    send(buffer, 0, 2)
    buffer.part(0, [3], lambda step: step != 3)
    buffer.leave_out(0, 3)
    send(buffer, 0, 1)
    assert drain(buffer) == [(0, 1, 2)]


def test_what_waits_for_a_step_that_was_never_sent_is_free_when_the_simulation_has_finished() -> None:
    buffer = new_buffer(Fifo(capacity=1))
    send(buffer, 0, 0, 1, 2, 3)
    assert buffer.num_waiting == 1
    buffer.end([0])
    drawn(buffer, 1)
    buffer.admit()
    drawn(buffer, 1)
    assert buffer.slots.num_free == buffer.slots.num_slots


def test_windows_are_given_up_and_counted_where_too_many_steps_wait() -> None:
    buffer = new_buffer(Fifo(capacity=100), most_kept=4)
    for step in (*range(0, 12, 2), *range(1, 12, 2)):
        assert len(send(buffer, 0, step)) == 1
        assert len(buffer.windows.kept()) <= 4
    num_made = len(drain(buffer))
    assert 0 < num_made < 10
    assert num_made + buffer.windows.num_late[0] == 10


def test_each_step_is_observed_once_though_several_windows_have_it() -> None:
    buffer = new_buffer(Reservoir(capacity=9, watermark=1, seed=0))
    send(buffer, 0, *range(5))
    observed: list[int] = []
    drain(buffer, observed)
    assert sorted(observed) == list(range(5))


def test_the_slots_of_a_study_are_no_more_than_its_steps() -> None:
    """A stream of 20 simulations through a reservoir: slots that were touched against the steps of its windows."""
    buffer = new_buffer(Reservoir(capacity=100, watermark=1, seed=0), WindowShape(length=5), num_slots=1000)
    most_held = touched = 0
    for simulation in range(20):
        for step in range(40):
            touched = max(touched, *buffer.slots._free[-1:])
            send(buffer, simulation, step)
            if buffer.population >= 8:
                drawn(buffer, 8)
            windows = buffer.rows_of(buffer.policy.slots())
            most_held = max(most_held, len(np.unique(windows)))
        buffer.end([simulation])
    assert most_held < touched + 1 <= 1.15 * most_held


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), policy=st.sampled_from(sorted(POLICIES)), shape=SHAPES, num=st.integers(1, 3))
def test_windows_that_are_dealt_to_other_ranks_are_all_drawn(
    data: st.DataObject, policy: str, shape: WindowShape, num: int
) -> None:
    """Some steps come before, the others after; what is not a window yet goes on where its simulation's steps come."""
    num_before, simulations = data.draw(st.integers(1, 3)), range(5)
    order = {it: data.draw(st.permutations(range(NUM_STEPS))) for it in simulations}
    halves = {it: data.draw(st.integers(0, NUM_STEPS)) for it in simulations}
    before = [new_buffer(POLICIES[policy](4, rank), shape) for rank in range(num_before)]
    found: list[tuple[int, ...]] = []
    for simulation in simulations:
        buffer = before[simulation % num_before]
        send(buffer, simulation, *order[simulation][: halves[simulation]])
        if buffer.policy.ready(2) and data.draw(st.booleans()):
            found += drawn(buffer, 2)
            buffer.admit()
    saved: list[Any] = [save(buffer) for buffer in before]
    seeds = [(0, rank) for rank in range(num)]
    dealt = redeal(
        [state for state, _ in saved],
        policy=type(before[0].policy),
        seeds=seeds,
    )
    for rank, share in enumerate(dealt):
        planned = num_slots_to_load(share.state, capacity=4, planned=200)
        buffer = new_buffer(POLICIES[policy](4, rank), shape, num_slots=planned)
        values = [saved[old][1]["u"][row] for old, row in zip(share.ranks.tolist(), share.rows.tolist(), strict=True)]
        load(buffer, share.state, {"u": np.array(values, np.int64)})
        for simulation in simulations[rank::num]:
            send(buffer, simulation, *order[simulation][halves[simulation] :])
        found += drain(buffer)
        assert buffer.slots.num_free == buffer.slots.num_slots
    assert sorted(found) == sorted(
        (simulation, *shape.steps(start)) for simulation in simulations for start in oracle(shape, range(NUM_STEPS))
    )
