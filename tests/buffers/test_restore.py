from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.buffers import Buffer, Draw, Fifo, Policy, Reservoir, Slots
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES
from tests.buffers.test_buffer import buffer_of, fill
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)
CAPACITY = 9


class Player:
    """Does things to a buffer and says what came of it in terms of samples, so that slot numbers do not matter."""

    def __init__(self, policy: Policy, num_slots: int) -> None:
        slots = Slots({"u": (2,), "v": ()}, num_slots)
        slots.allocate({"u": np.float32, "v": np.int64})
        self.buffer = Buffer(policy, slots, spare=num_slots)
        self.draws: deque[Draw] = deque()
        self.closed = False

    def samples(self, slots: Any) -> list[tuple[int, ...]]:
        store, index = self.buffer.slots, np.asarray(slots, np.intp)
        columns = (store.simulation_ids, store.time_steps, store.seen, store.arrays["v"], store.present["v"])
        assert (store.arrays["u"][index] == store.time_steps[index, None]).all()
        return list(zip(*(column[index].tolist() for column in columns), strict=True))

    def fill(self, num: int, first: int) -> int:
        if self.closed:
            return 0
        slots, store = self.buffer.claim(num), self.buffer.slots
        for sample, slot in enumerate(slots, first):
            store.simulation_ids[slot], store.time_steps[slot] = sample % 4, sample
            store.arrays["u"][slot], store.arrays["v"][slot] = sample, -sample
            if sample % 5 == 0:
                store.leave_out("v", [slot])
        self.buffer.enqueue(slots)
        return len(slots)

    def admit(self) -> Any:
        return self.samples(self.buffer.admit())

    def draw(self, num: int) -> Any:
        try:
            draw = self.buffer.draw(num, 0.0)
        except Closed:
            return "closed"
        if draw is None:
            return None
        self.draws.append(draw)
        return self.samples(draw.slots), draw.num_first

    def release(self) -> Any:
        if not self.draws:
            return None
        draw = self.draws.popleft()
        answer = self.samples(draw.slots), draw.num_first
        self.buffer.release(draw)
        return answer

    def close(self) -> Any:
        if not self.buffer.num_waiting:
            self.buffer.close()
            self.closed = True
        return self.closed

    def play(self, moves: list[tuple[str, int]], first: int) -> list[Any]:
        answers: list[Any] = []
        for move, num in moves:
            match move:
                case "fill":
                    first += self.fill(num, first)
                case "withdraw":
                    answers.append(self.buffer.withdraw(num % 4))
                case "draw":
                    answers.append(self.draw(num))
                case _:
                    answers.append(getattr(self, move)())
            buffer = self.buffer
            answers += [buffer.population, buffer.num_unseen, buffer.num_waiting, buffer.policy.room]
        return answers

    def restarted(self, policy: Policy, num_slots: int) -> "Player":
        other = Player(policy, num_slots)
        load(other.buffer, *save(self.buffer))
        while (draw := other.buffer.take_restored()) is not None:
            other.draws.append(draw)
        other.closed = self.closed
        return other


def moves(*names: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(1, 5)), max_size=40)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(150), deadline=None)
@given(
    before=moves("fill", "fill", "admit", "draw", "draw", "release", "withdraw"),
    after=moves("fill", "admit", "draw", "draw", "release", "withdraw", "close"),
    seed=st.integers(0, 9),
    closed=st.booleans(),
)
def test_a_buffer_restored_at_any_moment_continues_as_the_saved_one_does(
    policy: str, before: list[tuple[str, int]], after: list[tuple[str, int]], seed: int, closed: bool
) -> None:
    saved = Player(POLICIES[policy](CAPACITY, seed), 300)
    saved.play(before, 0)
    if closed:
        saved.close()
    restored = saved.restarted(POLICIES[policy](CAPACITY, 99), 310)
    ending = [("admit", 0), ("draw", 3), ("close", 0), *[("draw", 3)] * 10, *[("release", 0)] * 40]
    assert restored.play(after + ending, 1000) == saved.play(after + ending, 1000)
    assert restored.buffer.slots.num_free + restored.buffer.population + restored.buffer.num_waiting == 310


def half_trained(new_policy: Callable[[int, int], Policy]) -> tuple[Buffer, Draw]:
    """A buffer of capacity 6 that is full, of which 3 waits beside and one draw of 2 is out."""
    buffer = buffer_of(new_policy(6, 0))
    fill(buffer, 6)
    buffer.admit()
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    fill(buffer, 5)
    buffer.admit()
    return buffer, draw


@for_all_policies
def test_draws_that_were_not_released_are_given_out_again_first_and_hold_their_rows(
    new_policy: Callable[[int, int], Policy],
) -> None:
    saved, draw = half_trained(new_policy)
    restored = buffer_of(new_policy(6, 0))
    load(restored, *save(saved))
    again = restored.take_restored()
    assert again is not None
    assert restored.take_restored() is None
    assert again.num_first == draw.num_first == 2
    expected = saved.gather(draw)["u"].tolist()
    assert restored.gather(again)["u"].tolist() == expected
    while slots := restored.claim(1):
        restored.slots.arrays["u"][slots] = -1
    assert restored.gather(again)["u"].tolist() == expected
    restored.release(again)


@for_all_policies
def test_a_restored_buffer_can_be_saved_again_before_its_draws_are_taken(
    new_policy: Callable[[int, int], Policy],
) -> None:
    saved, draw = half_trained(new_policy)
    once, twice = buffer_of(new_policy(6, 0)), buffer_of(new_policy(6, 0))
    load(once, *save(saved))
    load(twice, *save(once))
    again = twice.take_restored()
    assert again is not None
    assert twice.gather(again)["u"].tolist() == saved.gather(draw)["u"].tolist()


def test_a_field_that_was_left_out_is_absent_after_a_restore_until_its_slot_is_claimed_again() -> None:
    saved = buffer_of(Fifo(capacity=2), num_slots=2)
    fill(saved, 2)
    saved.slots.leave_out("u", [1])
    saved.admit()
    restored = buffer_of(Fifo(capacity=2), num_slots=2)
    load(restored, *save(saved))
    assert restored.contents().present["u"].tolist() == [True, False]
    draw = restored.draw(2, 0.0)
    assert draw is not None
    restored.release(draw)
    restored.claim(2)
    assert restored.slots.present["u"].tolist() == [True, True]


@for_all_policies
def test_a_buffer_that_was_saved_closed_is_closed_and_goes_on_when_it_is_opened_again(
    new_policy: Callable[[int, int], Policy],
) -> None:
    saved = buffer_of(new_policy(6, 0))
    fill(saved, 5)
    saved.admit()
    saved.close()
    restored = buffer_of(new_policy(6, 1))
    load(restored, *save(saved))
    restored.close()
    with pytest.raises(AssertionError, match="enqueue after close"):
        fill(restored, 1)
    restored.discard([5])
    restored.reopen()
    fill(restored, 1)
    assert len(restored.admit()) == 1
    draw = restored.draw(6, 0.0)
    assert draw is not None
    assert sorted(restored.gather(draw)["u"][:, 0].tolist()) == [0, 1, 2, 3, 4, 5]


@for_all_policies
def test_a_buffer_above_its_capacity_accepts_nothing_until_it_is_below(
    new_policy: Callable[[int, int], Policy],
) -> None:
    saved = buffer_of(new_policy(10, 0))
    fill(saved, 10)
    saved.admit()
    restored = buffer_of(new_policy(4, 0))
    load(restored, *save(saved))
    new = fill(restored, 1)
    while not (admitted := restored.admit()):
        assert restored.num_unseen >= 4 or restored.population >= 4
        draw = restored.draw(3, 0.0)
        assert draw is not None
        restored.release(draw)
    assert admitted == new
    assert restored.population <= 4


def test_fewer_slots_than_samples_are_refused() -> None:
    saved = buffer_of(Reservoir(capacity=6, watermark=1, seed=0))
    fill(saved, 6)
    saved.admit()
    with pytest.raises(ValueError, match="a slot for each of 6 samples, but there are 5"):
        load(buffer_of(Reservoir(capacity=4, watermark=1, seed=0), num_slots=5), *save(saved))


def test_samples_of_other_fields_are_refused() -> None:
    saved = buffer_of(Fifo(capacity=6))
    fill(saved, 6)
    slots = Slots({"w": (2,)}, 10)
    slots.allocate({"w": np.float64})
    with pytest.raises(ValueError, match=r"Expected the fields \['w'\] in the samples, found \['u'\]"):
        load(Buffer(Fifo(capacity=6), slots), *save(saved))
