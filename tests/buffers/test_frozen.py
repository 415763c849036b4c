from collections.abc import Callable

import numpy as np
import pytest

from stream_server.buffers import Buffer, Fifo, Frozen, Policy, Reservoir, Slots, num_slots_to_load
from tests.buffers.policies import POLICIES
from tests.buffers.test_buffer import buffer_of, fill
from tests.support.buffer_saving import chunks, plain

for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)


def rows_of(frozen: Frozen, num: int = 2) -> list[float]:
    return [row for start, stop in chunks(frozen, num) for row in frozen.rows("u", start, stop)[:, 0].tolist()]


def test_the_state_tells_each_sample_by_its_row() -> None:
    buffer = buffer_of(Fifo(capacity=4))
    fill(buffer, 2, simulation_id=5)
    buffer.admit()
    first = buffer.draw(2, 0.0)
    fill(buffer, 3, simulation_id=6)
    buffer.admit()
    second = buffer.draw(1, 0.0)
    assert first is not None
    assert second is not None
    buffer.release(first)
    third = fill(buffer, 4, simulation_id=7)
    buffer.admit()
    assert sorted(third) == [0, 1, 5, 6]
    buffer.slots.leave_out("u", [4])
    frozen = buffer.freeze()
    assert frozen.slots.tolist() == [0, 1, 2, 3, 4, 5, 6]
    row_of = {slot: row for row, slot in enumerate(frozen.slots.tolist())}
    waiting = [row_of[slot] for slot in third]
    assert plain(frozen.state()) == {
        "policy": {"slots": [3, 4, *waiting[:2]], "closed": False},
        "backlog": waiting[2:],
        "draws": [{"rows": [2], "num_first": 1}],
        "simulation_ids": [7, 7, 6, 6, 6, 7, 7],
        "time_steps": [0, 10, 20, 30, 40, 50, 60],
        "seen": [0, 0, 1, 0, 0, 0, 0],
        "present": {"u": [True, True, True, True, False, True, True]},
    }


@for_all_policies
def test_frozen_rows_and_their_keys_stay_until_they_are_thawed(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = buffer_of(new_policy(4, 0), num_slots=8)
    fill(buffer, 4, simulation_id=3)
    buffer.admit()
    frozen = buffer.freeze()
    draw = buffer.draw(4, 0.0)
    assert draw is not None
    buffer.release(draw)
    buffer.withdraw(3)
    assert sorted(buffer.claim(4)) == [4, 5, 6, 7]
    assert buffer.claim(1) == []
    assert rows_of(frozen) == [0, 1, 2, 3]
    state = frozen.state()
    assert state["simulation_ids"].tolist() == [3, 3, 3, 3]
    assert state["seen"].tolist() == [0, 0, 0, 0]
    buffer.thaw(frozen, 0, 1)
    assert buffer.claim(1) == [0]
    buffer.thaw_all(frozen)
    assert sorted(buffer.claim(3)) == [1, 2, 3]


def test_a_slot_that_a_draw_holds_is_not_free_when_it_is_thawed() -> None:
    buffer = buffer_of(Fifo(capacity=2), num_slots=2)
    fill(buffer, 2)
    buffer.admit()
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    buffer.thaw_all(buffer.freeze())
    assert buffer.claim(1) == []
    buffer.release(draw)
    assert len(buffer.claim(2)) == 2


def test_freezing_again_gives_up_what_was_frozen_before_whose_writer_can_thaw_nothing_any_more() -> None:
    buffer = buffer_of(Fifo(capacity=4), num_slots=6)
    told: list[int] = []
    fill(buffer, 4)
    buffer.admit()
    first = buffer.freeze()
    draw = buffer.draw(4, 0.0)
    assert draw is not None
    buffer.release(draw)
    waiting = fill(buffer, 2)
    assert buffer.admit() == []
    buffer.on_room = lambda: told.extend(buffer.admit())
    second = buffer.freeze()
    assert told == waiting
    assert second.slots.tolist() == sorted(waiting)
    buffer.withdraw(0)
    buffer.thaw_all(first)
    buffer.thaw(first, 0, 4)
    assert sorted(buffer.claim(4)) == [0, 1, 2, 3]
    assert buffer.claim(1) == []
    buffer.thaw_all(second)
    assert len(buffer.claim(2)) == 2


def test_an_empty_buffer_is_frozen_as_often_as_one_likes_even_before_its_types_are_known() -> None:
    buffer = Buffer(Fifo(capacity=2), Slots({"u": ()}, 4))
    for _ in range(2):
        frozen = buffer.freeze()
        buffer.thaw_all(frozen)
        assert len(frozen) == 0
        assert frozen.fields == {}
        assert plain(frozen.state())["policy"] == {"slots": [], "closed": False}


def test_the_fields_are_known_with_type_and_shape_of_a_row() -> None:
    slots = Slots({"u": (3,), "v": ()}, 20)
    slots.allocate({"u": np.float64, "v": np.int32})
    buffer = Buffer(Fifo(capacity=20), slots)
    buffer.enqueue(buffer.claim(10))
    frozen = buffer.freeze()
    assert frozen.fields == {"u": (np.dtype(np.float64), (3,)), "v": (np.dtype(np.int32), ())}


def test_rows_side_by_side_are_not_copied_and_others_are_copied_into_the_same_memory() -> None:
    buffer = buffer_of(Fifo(capacity=8))
    fill(buffer, 8)
    buffer.admit()
    draw = buffer.draw(1, 0.0)
    assert draw is not None
    buffer.release(draw)
    buffer.slots.simulation_ids[3] = 9
    buffer.withdraw(9)
    frozen = buffer.freeze()
    assert frozen.slots.tolist() == [1, 2, 4, 5, 6, 7]
    array = buffer.slots.arrays["u"]
    assert np.shares_memory(frozen.rows("u", 2, 6), array)
    mixed = frozen.rows("u", 0, 3)
    assert mixed[:, 0].tolist() == [1, 2, 4]
    assert not np.shares_memory(mixed, array)
    again = frozen.rows("u", 1, 3)
    assert again[:, 0].tolist() == [2, 4]
    assert np.shares_memory(mixed, again)


def test_a_thaw_that_makes_room_for_what_waits_says_so_without_the_lock() -> None:
    slots = Slots({"u": (2,)}, 8)
    slots.allocate({"u": np.float64})
    buffer = Buffer(Reservoir(capacity=3, watermark=1, seed=0), slots, spare=1)
    admitted: list[int] = []
    fill(buffer, 3)
    buffer.admit()
    frozen = buffer.freeze()
    draw = buffer.draw(3, 0.0)
    assert draw is not None
    buffer.release(draw)
    waiting = fill(buffer, 3)
    assert buffer.admit() == waiting[:1]
    buffer.on_room = lambda: admitted.extend(buffer.admit())
    for row in range(3):
        buffer.thaw(frozen, row, row + 1)
    assert admitted == waiting[1:]
    assert frozen.state()["policy"]["slots"].tolist() == [0, 1, 2]
    assert buffer.slots.num_free == 8 - 3


@for_all_policies
def test_what_waited_at_the_freeze_is_admitted_though_no_spare_slot_is_left(
    new_policy: Callable[[int, int], Policy],
) -> None:
    buffer = buffer_of(new_policy(3, 0))
    fill(buffer, 3)
    buffer.admit()
    old = fill(buffer, 2)
    frozen = buffer.freeze()
    new = fill(buffer, 1)
    admitted: list[int] = []
    for _ in range(3):
        draw = buffer.draw(3, 0.0)
        assert draw is not None
        buffer.release(draw)
        admitted += buffer.admit()
        if len(admitted) == 2:
            break
    assert admitted == old
    assert buffer.admit() == []
    buffer.thaw_all(frozen)
    for _ in range(3):
        if admitted := buffer.admit():
            break
        draw = buffer.draw(2, 0.0)
        assert draw is not None
        buffer.release(draw)
    assert admitted == new


def test_what_waited_at_the_freeze_and_was_withdrawn_leaves_no_place_to_those_behind_it() -> None:
    buffer = buffer_of(Fifo(capacity=3))
    fill(buffer, 3)
    buffer.admit()
    fill(buffer, 2, simulation_id=7)
    frozen = buffer.freeze()
    new = fill(buffer, 2)
    assert buffer.withdraw(7) == 2
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    buffer.release(draw)
    assert buffer.admit() == []
    buffer.thaw(frozen, 3, 5)
    buffer.thaw(frozen, 0, 1)
    assert buffer.admit() == new[:1]


def test_a_buffer_to_load_needs_slots_for_what_exceeds_the_plan() -> None:
    state = {"policy": {"slots": np.arange(12)}, "simulation_ids": np.zeros(17)}
    assert num_slots_to_load(state, capacity=10, planned=14) == 14 + 2 + 5
    assert num_slots_to_load(state, capacity=20, planned=24) == 24 + 5
