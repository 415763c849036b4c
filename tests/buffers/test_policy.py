from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.buffers import Fifo, Firo, Policy, Reservoir
from stream_server.buffers.policy import even_share, exchange
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import plain, stored

for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)


def play(policy: Policy, first_slot: int, num_turns: int) -> list[list[int]]:
    """Everything a policy answers while it is filled and drawn in a fixed pattern."""
    answers = []
    for turn in range(num_turns):
        num = min(1 + turn % 3, policy.room)
        answers.append(policy.put(range(first_slot, first_slot + num)).tolist())
        first_slot += num
        slots, num_first, removed = policy.draw(policy.ready(1 + turn % 4))
        answers += [slots.tolist(), [num_first], removed.tolist()]
    return answers


def drain(policy: Policy) -> list[list[int]]:
    answers = [policy.close().tolist()]
    while size := policy.ready(3):
        slots, num_first, removed = policy.draw(size)
        answers += [slots.tolist(), [num_first], removed.tolist()]
    return answers


@for_all_policies
@pytest.mark.parametrize("num_turns", [0, 1, 2, 5, 20, 40])
def test_a_restored_policy_continues_as_the_saved_one_does(
    new_policy: Callable[[int, int], Policy], num_turns: int
) -> None:
    saved = new_policy(10, 1)
    play(saved, 0, num_turns)
    restored = new_policy(10, 2)
    restored.load_state_dict(stored(saved.state_dict()))
    assert play(restored, 1000, 20) == play(saved, 1000, 20)
    assert drain(restored) == drain(saved)


@for_all_policies
@pytest.mark.parametrize("num_draws", [0, 1, 2, 3])
def test_a_closed_policy_restored_while_it_drains_continues_as_the_saved_one_does(
    new_policy: Callable[[int, int], Policy], num_draws: int
) -> None:
    saved = new_policy(10, 1)
    saved.put(range(10))
    saved.close()
    for _ in range(num_draws):
        saved.draw(saved.ready(3))
    restored = new_policy(10, 2)
    restored.load_state_dict(stored(saved.state_dict()))
    assert drain(restored) == drain(saved)


@for_all_policies
def test_closing_a_policy_that_was_restored_closed_changes_nothing(new_policy: Callable[[int, int], Policy]) -> None:
    saved = new_policy(10, 1)
    play(saved, 0, 20)
    saved.close()
    state = saved.state_dict()
    restored = new_policy(10, 2)
    restored.load_state_dict(stored(state))
    assert restored.close().tolist() == []
    assert plain(restored.state_dict()) == plain(state)


@for_all_policies
def test_a_state_is_a_copy_that_later_draws_do_not_change(new_policy: Callable[[int, int], Policy]) -> None:
    policy = new_policy(10, 1)
    play(policy, 0, 20)
    state = policy.state_dict()
    before = plain(state)
    play(policy, 100, 20)
    assert plain(state) == before


@for_all_policies
@pytest.mark.parametrize("num_draws", [0, 1, 2])
def test_a_policy_that_is_opened_again_goes_on_with_what_is_left_of_it(
    new_policy: Callable[[int, int], Policy], num_draws: int
) -> None:
    policy = new_policy(10, 1)
    policy.put(range(9))
    policy.close()
    for _ in range(num_draws):
        policy.draw(policy.ready(3))
    left = set(policy.slots().tolist())
    num_unseen = policy.num_unseen
    policy.reopen()
    assert policy.num_unseen == num_unseen
    assert policy.ready(len(left) + 1) == 0
    policy.put([20])
    assert set(policy.slots().tolist()) == left | {20}
    play(policy, 100, 20)
    drain(policy)
    assert policy.num_unseen == policy.num_left == 0


@for_all_policies
def test_saving_changes_nothing(new_policy: Callable[[int, int], Policy]) -> None:
    watched, alone = new_policy(10, 1), new_policy(10, 1)
    for turn in range(20):
        state = watched.state_dict()
        assert plain(watched.state_dict()) == plain(state)
        assert play(watched, 10 * turn, 1) == play(alone, 10 * turn, 1)


@for_all_policies
def test_the_same_seed_gives_the_same_draws(new_policy: Callable[[int, int], Policy]) -> None:
    assert play(new_policy(10, 1), 0, 30) == play(new_policy(10, 1), 0, 30)


@for_all_policies
def test_all_that_is_put_is_drawn_before_the_end(new_policy: Callable[[int, int], Policy]) -> None:
    policy = new_policy(10, 1)
    answers = play(policy, 0, 40)
    num_put = 1 + max(slot for slots in answers[1::4] for slot in slots)
    drawn = {slot for slots in answers[1::4] + drain(policy)[1::3] for slot in slots}
    assert drawn >= set(range(num_put))
    assert policy.num_unseen == policy.num_left == 0


@for_all_policies
def test_an_open_policy_gives_full_batches_only(new_policy: Callable[[int, int], Policy]) -> None:
    policy = new_policy(10, 1)
    policy.put(range(4))
    assert policy.ready(5) == 0
    assert policy.ready(4) == 4


@for_all_policies
def test_closing_twice_is_closing_once(new_policy: Callable[[int, int], Policy]) -> None:
    policy = new_policy(10, 1)
    play(policy, 0, 10)
    policy.close()
    state = policy.state_dict()
    assert policy.close().tolist() == []
    assert plain(policy.state_dict()) == plain(state)


@for_all_policies
def test_a_capacity_below_one_is_refused(new_policy: Callable[[int, int], Policy]) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1 sample, but is 0"):
        new_policy(0, 1)


@pytest.mark.parametrize("policy", [Firo, Reservoir])
@pytest.mark.parametrize("watermark", [0, 11])
def test_a_watermark_that_cannot_be_reached_is_refused(policy: type[Firo | Reservoir], watermark: int) -> None:
    with pytest.raises(ValueError, match=f"within 1 and the capacity of 10, but is {watermark}"):
        policy(capacity=10, watermark=watermark, seed=0)


@for_all_policies
def test_a_policy_above_its_capacity_has_no_room_for_unseen_samples_until_enough_are_drawn(
    new_policy: Callable[[int, int], Policy],
) -> None:
    large = new_policy(10, 1)
    large.put(range(10))
    small = new_policy(4, 1)
    small.load_state_dict(large.state_dict())
    assert small.room == 0
    assert small.population == 10
    while not small.room:
        assert small.draw(small.ready(3)).slots.size == 3
    assert small.num_unseen < 4
    small.put([10])
    assert small.population <= 4


def test_a_fifo_above_its_capacity_after_a_restart_accepts_nothing_until_it_is_below() -> None:
    large = Fifo(capacity=10)
    large.put(range(10))
    small = Fifo(capacity=4)
    small.load_state_dict(large.state_dict())
    assert small.room == 0
    small.draw(7)
    assert small.room == 1
    small.put([10])
    assert small.draw(4).slots.tolist() == [7, 8, 9, 10]


@given(num_left=st.integers(0, 500), num=st.integers(1, 50))
def test_what_is_left_is_split_into_the_fewest_batches_as_evenly_as_can_be(num_left: int, num: int) -> None:
    sizes: list[int] = []
    while size := even_share(num_left - sum(sizes), num):
        sizes.append(size)
    assert sum(sizes) == num_left
    assert len(sizes) == -(-num_left // num)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(data=st.data(), size=st.integers(1, 12))
def test_exchange_brings_positions_to_their_place_and_loses_nothing(data: st.DataObject, size: int) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    start = data.draw(st.integers(0, size - len(positions)))
    items = np.arange(100, 100 + size)
    mirror = -items
    exchange(np.array(positions, np.intp), start, items, mirror)
    assert {it - 100 for it in items[start : start + len(positions)].tolist()} == set(positions)
    assert sorted(items.tolist()) == list(range(100, 100 + size))
    assert mirror.tolist() == (-items).tolist()


@for_all_policies
def test_at_the_end_of_a_round_each_sample_was_drawn_and_more_may_come(
    new_policy: Callable[[int, int], Policy],
) -> None:
    policy = new_policy(10, 1)
    for first in (0, 10, 20):
        policy.put(range(first, first + policy.room)[:7])
        policy.end_round()
        drawn: set[int] = set()
        while num := policy.ready(3):
            drawn.update(policy.draw(num).slots.tolist())
        assert set(range(first, first + 7)) <= drawn
        assert policy.num_unseen == 0
        policy.reopen()
    policy.put(range(30, 33))
    play(policy, 100, 20)
    drain(policy)
    assert policy.num_unseen == policy.num_left == 0
