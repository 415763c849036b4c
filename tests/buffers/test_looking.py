"""Looking at what is in a buffer changes nothing in it."""

from collections.abc import Callable

import numpy as np
import pytest

from stream_server.buffers import Buffer, Fifo, Policy, Slots
from tests.buffers.policies import POLICIES

for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)


def filled(policy: Policy, num: int, num_slots: int = 8) -> Buffer:
    slots = Slots({"u": (1,)}, num_slots)
    slots.allocate({"u": np.float64})
    buffer = Buffer(policy, slots)
    add(buffer, num)
    return buffer


def add(buffer: Buffer, num: int) -> None:
    buffer.enqueue(buffer.claim(num))
    buffer.admit()


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@for_all_policies
def test_the_age_of_a_sample_is_how_many_came_in_after_it(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = filled(new_policy(4, 0), 1)
    add(buffer, 2)
    add(buffer, 1)
    assert sorted(buffer.ages().tolist()) == [0, 1, 1, 3]


def test_a_slot_that_is_used_again_is_young_again() -> None:
    buffer = filled(Fifo(capacity=2), 2, num_slots=2)
    draw = buffer.draw(1, timeout_s=0.0)
    assert draw is not None
    buffer.release(draw)
    add(buffer, 1)
    assert buffer.ages().tolist() == [1, 0]


def test_samples_that_wait_for_room_have_no_age_yet() -> None:
    buffer = filled(Fifo(capacity=2), 3)
    assert len(buffer.ages()) == 2


@for_all_policies
def test_a_peek_holds_distinct_samples_and_draws_none(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = filled(new_policy(4, 0), 4)
    held = buffer.peek(3, random())
    assert len(set(held.slots.tolist()) & set(buffer.policy.slots().tolist())) == 3
    assert (buffer.population, buffer.num_unseen, buffer.seen_counts().sum()) == (4, 4, 0)
    buffer.release(held)


@for_all_policies
def test_a_peek_does_not_change_what_is_drawn_next(new_policy: Callable[[int, int], Policy]) -> None:
    drawn = []
    for peeks in (0, 2):
        buffer = filled(new_policy(4, 0), 4)
        for _ in range(peeks):
            buffer.release(buffer.peek(2, random()))
        draw = buffer.draw(3, timeout_s=0.0)
        assert draw is not None
        drawn.append(draw.slots.tolist())
    assert drawn[0] == drawn[1]


def test_a_slot_that_is_peeked_at_is_not_filled_anew_until_it_is_released() -> None:
    buffer = filled(Fifo(capacity=2), 2, num_slots=2)
    held = buffer.peek(2, random())
    buffer.withdraw(-1)
    assert buffer.population == 0
    assert buffer.claim(1) == []
    buffer.release(held)
    assert len(buffer.claim(2)) == 2


def test_a_peek_into_an_empty_buffer_finds_nothing() -> None:
    buffer = filled(Fifo(capacity=2), 0)
    held = buffer.peek(2, random())
    assert len(held.slots) == 0
    buffer.release(held)
