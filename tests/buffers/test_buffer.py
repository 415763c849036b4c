from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore

import numpy as np
import pytest

from stream_server.buffers import Buffer, Draw, Drawn, Fifo, Firo, Policy, Reservoir, Slots
from stream_server.buffers.policy import SlotArray
from stream_server.errors import Closed, ProducerFailed, UserCodeError
from tests.buffers.policies import POLICIES

for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)


def buffer_of(policy: Policy, num_slots: int = 16) -> Buffer:
    slots = Slots({"u": (2,)}, num_slots)
    slots.allocate({"u": np.float64})
    return Buffer(policy, slots)


def fill(buffer: Buffer, num: int, simulation_id: int = 0) -> list[int]:
    slots = buffer.claim(num)
    assert len(slots) == num
    for slot in slots:
        buffer.slots.arrays["u"][slot] = slot
        buffer.slots.simulation_ids[slot] = simulation_id
        buffer.slots.time_steps[slot] = 10 * slot
    buffer.enqueue(slots)
    return slots


@for_all_policies
def test_a_draw_finds_nothing_within_its_time_in_an_empty_buffer(new_policy: Callable[[int, int], Policy]) -> None:
    assert buffer_of(new_policy(4, 0)).draw(2, timeout_s=0.0) is None


@contextmanager
def waiting_draw(buffer: Buffer, num: int) -> Iterator[Future[Draw | None]]:
    """A draw in another thread that has found the gate shut twice, so that it waits or is about to."""
    asked = Semaphore(0)
    ready = buffer.policy.ready

    def ready_and_tell(num: int) -> int:
        size = ready(num)
        asked.release()
        return size

    buffer.policy.ready = ready_and_tell  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as trainer:
        future = trainer.submit(buffer.draw, num, 100.0)
        assert asked.acquire(timeout=100)
        assert asked.acquire(timeout=100)
        yield future


@for_all_policies
def test_a_waiting_draw_gets_its_batch_when_enough_is_admitted(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = buffer_of(new_policy(4, 0))
    with waiting_draw(buffer, 3) as future:
        for _ in range(3):
            fill(buffer, 1)
            buffer.admit()
        draw = future.result(timeout=100)
    assert draw is not None
    assert sorted(draw.slots.tolist()) == [0, 1, 2]
    assert draw.num_first == 3


@for_all_policies
def test_a_waiting_draw_ends_when_the_empty_buffer_is_closed(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = buffer_of(new_policy(4, 0))
    with waiting_draw(buffer, 3) as future:
        buffer.close()
        with pytest.raises(Closed):
            future.result(timeout=100)


@for_all_policies
def test_an_error_of_the_receiver_reaches_a_waiting_draw_as_its_cause(
    new_policy: Callable[[int, int], Policy],
) -> None:
    buffer = buffer_of(new_policy(4, 0))
    error = OSError("no descriptors left")
    with waiting_draw(buffer, 3) as future:
        buffer.close(error)
        with pytest.raises(ProducerFailed) as raised:
            future.result(timeout=100)
    assert raised.value.__cause__ is error


def test_a_waiting_draw_goes_on_when_a_withdrawal_opens_the_gate() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, draws_per_sample=1, seed=0))
    fill(buffer, 4)
    buffer.admit()
    first = buffer.draw(1, 0.0)
    assert first is not None
    buffer.slots.simulation_ids[first.slots] = 7
    with waiting_draw(buffer, 1) as future:
        assert buffer.withdraw(7) == 0
        assert future.result(timeout=100) is not None


def test_an_error_ends_the_stream_even_when_samples_are_left_and_the_first_error_counts() -> None:
    buffer = buffer_of(Fifo(capacity=4))
    fill(buffer, 4)
    buffer.admit()
    first = OSError("first")
    buffer.close(first)
    buffer.close(OSError("second"))
    buffer.close()
    with pytest.raises(ProducerFailed) as raised:
        buffer.draw(1, 0.0)
    assert raised.value.__cause__ is first


@for_all_policies
def test_after_close_what_is_left_is_drawn_in_even_batches_and_then_the_stream_ends(
    new_policy: Callable[[int, int], Policy],
) -> None:
    buffer = buffer_of(new_policy(11, 0))
    fill(buffer, 11)
    buffer.admit()
    buffer.close()
    sizes = []
    while buffer.policy.num_left:
        draw = buffer.draw(10, 0.0)
        assert draw is not None
        sizes.append(len(draw.slots))
        buffer.release(draw)
    with pytest.raises(Closed):
        buffer.draw(10, 0.0)
    assert len(sizes) == -(-sum(sizes) // 10)
    assert max(sizes) - min(sizes) <= 1
    assert buffer.num_unseen == 0


def test_what_finds_no_room_waits_in_the_backlog_and_is_admitted_in_its_order() -> None:
    buffer = buffer_of(Fifo(capacity=4))
    slots = fill(buffer, 6)
    assert buffer.admit() == slots[:4]
    assert buffer.num_waiting == 2
    assert buffer.admit() == []
    assert buffer.draw(3, 0.0) is not None
    assert buffer.admit() == slots[4:]


def test_a_draw_that_makes_room_calls_on_room_without_the_lock_only_when_something_waits() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, seed=0))
    admitted: list[int] = []
    buffer.on_room = lambda: admitted.extend(buffer.admit())
    fill(buffer, 4)
    buffer.admit()
    buffer.draw(1, 0.0)
    assert admitted == []
    (newcomer,) = fill(buffer, 1)
    buffer.admit()
    fill(buffer, 1)
    buffer.draw(2, 0.0)
    assert len(admitted) == 1
    assert newcomer not in admitted


def test_an_evicted_slot_is_not_claimed_before_the_draw_that_holds_it_is_released() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, seed=0), num_slots=6)
    fill(buffer, 4)
    buffer.admit()
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    fill(buffer, 2)
    assert len(buffer.admit()) == 2
    assert buffer.claim(1) == []
    assert buffer.gather(draw)["u"][:, 0].tolist() == draw.slots.tolist()
    buffer.release(draw)
    assert sorted(buffer.claim(2)) == sorted(draw.slots.tolist())


def test_a_slot_removed_by_its_own_draw_is_not_claimed_before_the_release() -> None:
    buffer = buffer_of(Fifo(capacity=2), num_slots=2)
    fill(buffer, 2)
    buffer.admit()
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    assert buffer.claim(1) == []
    buffer.release(draw)
    assert len(buffer.claim(2)) == 2


def test_a_withdrawn_slot_is_not_claimed_before_the_draw_that_holds_it_is_released() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, seed=0), num_slots=4)
    fill(buffer, 4, simulation_id=3)
    buffer.admit()
    draw = buffer.draw(2, 0.0)
    assert draw is not None
    assert buffer.withdraw(3) == 2
    assert set(buffer.claim(2)).isdisjoint(draw.slots.tolist())
    assert buffer.claim(1) == []
    buffer.release(draw)
    assert len(buffer.claim(2)) == 2


def test_discarded_slots_are_free_again() -> None:
    buffer = buffer_of(Fifo(capacity=2), num_slots=2)
    slots = buffer.claim(2)
    buffer.discard(slots)
    assert sorted(buffer.claim(2)) == sorted(slots)


@for_all_policies
def test_withdrawing_a_simulation_drops_it_everywhere_and_counts_what_was_never_drawn(
    new_policy: Callable[[int, int], Policy],
) -> None:
    buffer = buffer_of(new_policy(8, 0))
    fill(buffer, 4, simulation_id=3)
    fill(buffer, 4, simulation_id=5)
    buffer.admit()
    draw = buffer.draw(4, 0.0)
    assert draw is not None
    buffer.release(draw)
    num_drawn = int((buffer.slots.simulation_ids[draw.slots] == 5).sum())
    fill(buffer, 2, simulation_id=5)
    assert buffer.withdraw(5) == 6 - num_drawn
    assert buffer.num_waiting == 0
    assert 5 not in buffer.contents().simulation_ids
    assert buffer.slots.num_free == 16 - buffer.population


def test_contents_are_writable_copies_with_their_keys() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, seed=0))
    fill(buffer, 3, simulation_id=7)
    buffer.slots.leave_out("u", [1])
    buffer.admit()
    contents = buffer.contents()
    assert len(contents) == 3
    assert contents.simulation_ids.tolist() == [7, 7, 7]
    assert contents.time_steps.tolist() == [0, 10, 20]
    assert contents.fields["u"].tolist() == [[0, 0], [0, 0], [2, 2]]
    assert contents.present["u"].tolist() == [True, False, True]
    contents.fields["u"][:] = -1
    assert buffer.slots.arrays["u"][2, 0] == 2


def test_seen_counts_tell_how_often_each_sample_was_drawn() -> None:
    buffer = buffer_of(Reservoir(capacity=4, watermark=1, seed=0))
    fill(buffer, 4)
    buffer.admit()
    for _ in range(3):
        buffer.draw(4, 0.0)
    assert buffer.seen_counts().tolist() == [3, 3, 3, 3]


def test_seen_counts_include_repetitions_within_the_last_batches_of_firo() -> None:
    buffer = buffer_of(Firo(capacity=4, watermark=4, pseudo_epochs=4, seed=0))
    fill(buffer, 2)
    buffer.admit()
    buffer.close()
    buffer.draw(4, 0.0)
    buffer.draw(4, 0.0)
    assert buffer.slots.seen[:2].tolist() == [4, 4]


@pytest.mark.parametrize("num", [0, 5])
def test_a_batch_that_could_never_be_drawn_is_refused(num: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 4 samples .the capacity., but has {num}"):
        buffer_of(Fifo(capacity=4)).draw(num, 0.0)


def test_fewer_slots_than_the_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="as many slots as the capacity of 20, but are 16"):
        buffer_of(Fifo(capacity=20))


def test_closing_before_the_backlog_is_admitted_is_an_error_of_ours() -> None:
    buffer = buffer_of(Fifo(capacity=4))
    fill(buffer, 1)
    with pytest.raises(AssertionError, match="before the backlog was admitted"):
        buffer.close()


@pytest.mark.parametrize("num_given", [0, 1, 3])
def test_a_policy_that_draws_another_number_of_samples_is_refused(num_given: int) -> None:
    class Odd(Reservoir):
        def draw(self, num: int) -> Drawn:
            return super().draw(num_given)

    buffer = buffer_of(Odd(capacity=4, watermark=1, seed=0))
    fill(buffer, 4)
    buffer.admit()
    with pytest.raises(UserCodeError, match=rf"Odd\.draw\(2\) must give 2 slots, but gave {num_given}$"):
        buffer.draw(2, 0.0)


def test_a_policy_that_evicts_a_sample_before_its_first_draw_is_refused() -> None:
    class Hasty(Reservoir):
        @property
        def room(self) -> int:
            return self.capacity

        def put(self, slots: Sequence[int]) -> SlotArray:
            evicted = self.slots()[: max(0, self.population + len(slots) - self.capacity)]
            self.remove(evicted)
            super().put(slots)
            return evicted

    buffer = buffer_of(Hasty(capacity=2, watermark=1, seed=0))
    fill(buffer, 2)
    buffer.admit()
    fill(buffer, 1)
    with pytest.raises(UserCodeError, match=r"Hasty\.put evicted a sample that was never drawn"):
        buffer.admit()


@for_all_policies
def test_each_sample_is_told_to_be_drawn_for_the_first_time_once(new_policy: Callable[[int, int], Policy]) -> None:
    buffer = buffer_of(new_policy(8, 0))
    fill(buffer, 8)
    buffer.admit()
    buffer.close()
    first: list[int] = []
    while True:
        try:
            draw = buffer.draw(3, timeout_s=0.0)
        except Closed:
            break
        assert draw is not None
        is_first = buffer.is_first(draw)
        assert np.count_nonzero(is_first) == draw.num_first
        first += draw.slots[is_first].tolist()
        buffer.release(draw)
    assert sorted(first) == sorted(set(first))
    assert len(first) == 8
