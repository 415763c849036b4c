"""The simulation's threads: one at a time, repeatable, under a clock of their own."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from stream_server.buffers import Buffer, Fifo, Slots, buffer, gate
from stream_server.errors import Closed
from tests.faults.simulated.stand_ins import Condition, Event, Lock, RLock, SimpleQueue, Thread, stand_in
from tests.faults.simulated.threads import Deadlock, Overtime, Process, Threads

SEEDS = range(40)


def run(seed: int, *functions: Callable[[Threads], Any], linger: float = 0.3) -> Threads:
    """Run the functions as threads to their end."""
    with Threads(Random(seed), linger=linger) as threads:
        for function in functions:
            threads.spawn(function, threads, name=function.__name__)
        threads.run()
    return threads


def outcomes(make: Callable[[Threads], tuple[Callable[[], Any], ...]]) -> list[str]:
    """How each seed ends: "" or the name of what was found."""
    found = []
    for seed in SEEDS:
        with Threads(Random(seed), linger=0.3) as threads:
            for i, function in enumerate(make(threads)):
                threads.spawn(function, name=f"thread {i}")
            try:
                threads.run(limit_s=100.0)
                found.append("")
            except (Deadlock, Overtime, AssertionError) as error:
                found.append(type(error).__name__)
    return found


def test_equal_seeds_have_equal_traces() -> None:
    def walk(threads: Threads) -> None:
        for _ in range(20):
            threads.switch("step")

    def stroll(threads: Threads) -> None:
        for _ in range(20):
            threads.sleep(threads.random.random())

    traces = [run(seed, walk, stroll).trace for seed in (1, 1, 2)]
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_the_clock_jumps_to_the_earliest_time_for_which_somebody_waits() -> None:
    seen: list[tuple[str, float]] = []

    def late(threads: Threads) -> None:
        threads.sleep(2000.0)
        seen.append(("late", round(threads.now, 2)))

    def early(threads: Threads) -> None:
        threads.sleep(10.0)
        seen.append(("early", round(threads.now, 2)))

    run(1, late, early)
    assert seen == [("early", 10.0), ("late", 2000.0)]


def test_a_lock_keeps_others_out() -> None:
    def make(threads: Threads) -> tuple[Callable[[], Any], ...]:
        lock, inside = Lock(threads), [0]

        def enter() -> None:
            for _ in range(5):
                with lock:
                    inside[0] += 1
                    threads.switch("inside")
                    assert inside[0] == 1
                    inside[0] -= 1

        return (enter, enter, enter)

    assert not any(outcomes(make))


def test_a_race_without_a_lock_is_found() -> None:
    def make(threads: Threads) -> tuple[Callable[[], Any], ...]:
        total = [0]

        def add() -> None:
            read = total[0]
            threads.switch("between reading and writing")
            total[0] = read + 1
            threads.switch("added")

        def check() -> None:
            threads.sleep(1.0)
            assert total[0] == 2

        return (add, add, check)

    found = outcomes(make)
    assert "AssertionError" in found
    assert "" in found


def test_a_lost_wake_up_is_found() -> None:
    def make(threads: Threads) -> tuple[Callable[[], Any], ...]:
        items: list[int] = []
        condition = Condition(threads)

        def take() -> None:
            if not items:  # looked at before the lock is held: the notification may come in between
                with condition:
                    condition.wait()
            items.pop()

        def give() -> None:
            threads.switch("on the way")
            items.append(1)
            with condition:
                condition.notify()

        return (take, give)

    found = outcomes(make)
    assert "Deadlock" in found
    assert "" in found


def test_a_lost_wake_up_with_a_timeout_shows_in_the_virtual_time() -> None:
    slept_s: list[float] = []
    for seed in SEEDS:
        with Threads(Random(seed), linger=0.3) as threads:
            event = Event(threads)

            def wait(threads: Threads = threads, event: Event = event) -> None:
                event.clear()  # the bug: what was set already is forgotten
                threads.switch("cleared")
                event.wait(5.0)
                slept_s.append(threads.now)

            threads.spawn(wait, name="waiting")
            threads.spawn(event.set, name="setting")
            threads.run()
    assert min(slept_s) < 0.1
    assert max(slept_s) >= 5.0


def test_locks_in_different_orders_are_a_deadlock_that_tells_who_waits() -> None:
    with Threads(Random(3), linger=0.0) as threads:
        one, two = Lock(threads), Lock(threads)

        def hold(first: Lock, second: Lock) -> None:
            while True:
                with first, second:
                    threads.switch("both")

        threads.spawn(hold, one, two, name="here")
        threads.spawn(hold, two, one, name="there")
        with pytest.raises(Deadlock, match=r"(?s)here: lock.*in hold.*there: lock.*in hold"):
            threads.run()


def test_a_thread_that_never_ends_is_overtime() -> None:
    def poll(threads: Threads) -> None:
        while True:
            threads.sleep(0.5)

    with Threads(Random(1)) as threads:
        threads.spawn(poll, threads, name="poll")
        with pytest.raises(Overtime, match="poll: sleep"):
            threads.run(limit_s=60.0)


def test_an_exception_of_a_thread_ends_the_run() -> None:
    def fail(_: Threads) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(1, fail)


def test_a_killed_process_does_nothing_more_and_its_locks_stay_held() -> None:
    done: list[str] = []
    with Threads(Random(1), linger=0.5) as threads:
        process = Process("doomed")
        lock, disk = Lock(threads), SimpleQueue(threads)

        def work() -> None:
            try:
                with lock:
                    done.append("begun")
                    threads.sleep(10.0)
                    done.append("ended")
            finally:
                disk.put("cleaned up")
                done.append("finally")

        def kill() -> None:
            threads.sleep(5.0)
            threads.kill(process)
            threads.sleep(20.0)

        threads.spawn(work, name="work", process=process)
        threads.spawn(kill, name="kill")
        threads.run()
        assert lock.locked()
        assert done == ["begun"]
        assert threads.now > 25.0
    assert done == ["begun"]


def test_a_process_can_kill_itself() -> None:
    done: list[str] = []
    with Threads(Random(1)) as threads:
        process = Process("doomed")

        def work() -> None:
            threads.kill(process)
            done.append("after")

        threads.spawn(work, name="work", process=process)
        threads.run()
    assert done == []


def test_a_stopped_process_goes_on_when_it_is_continued() -> None:
    ticks: list[float] = []
    with Threads(Random(1)) as threads:
        process = Process("stopped")

        def work() -> None:
            for _ in range(10):
                threads.sleep(1.0)
                ticks.append(threads.now)

        threads.at(3.5, lambda: setattr(process, "is_stopped", True))
        threads.at(50.0, lambda: setattr(process, "is_stopped", False))
        threads.spawn(work, name="work", process=process)
        threads.run()
    assert [round(tick, 1) for tick in ticks] == [1.0, 2.0, 3.0, *(50.0 + n for n in range(7))]


def test_a_thread_belongs_to_the_process_that_starts_it_and_can_be_joined() -> None:
    done: list[str] = []
    with Threads(Random(1)) as threads:
        process = Process("parent")

        def child() -> None:
            assert threads.current is not None
            assert threads.current.process is process
            threads.sleep(3.0)
            done.append("child")

        def parent() -> None:
            thread = Thread(threads, target=child, name="child")
            thread.start()
            thread.join(1.0)
            assert thread.is_alive()
            thread.join()
            done.append("parent")

        threads.spawn(parent, name="main", process=process)
        threads.run()
    assert done == ["child", "parent"]


def test_a_lock_that_may_be_taken_again_is_free_after_as_many_releases() -> None:
    with Threads(Random(1)) as threads:
        lock, seen = RLock(threads), list[bool]()

        def outer() -> None:
            with lock:
                with lock:
                    pass
                threads.sleep(1.0)
                seen.append(lock.locked())

        def other() -> None:
            threads.sleep(0.5)
            seen.append(lock.acquire(timeout=0.1))
            with lock:
                seen.append(True)

        threads.spawn(outer, name="outer")
        threads.spawn(other, name="other")
        threads.run()
    assert seen == [False, True, True]


@pytest.mark.parametrize("seed", range(20))
def test_the_buffer_of_the_product_runs_on_these_threads(seed: int) -> None:
    with Threads(Random(seed), linger=0.2) as threads, stand_in(threads, buffer, gate):
        slots = Slots({"u": (1,)}, 6)
        slots.allocate({"u": np.float64})
        shared = Buffer(Fifo(capacity=4), slots)
        room = Event(threads)
        shared.on_room = room.set
        drawn: list[int] = []

        def fill() -> None:
            for step in range(12):
                while not (claimed := shared.claim(1)):
                    shared.admit()
                    room.wait(0.1)
                slots.simulation_ids[claimed[0]], slots.time_steps[claimed[0]] = 0, step
                shared.enqueue(claimed)
                shared.admit()
            while shared.num_waiting:
                shared.admit()
                room.wait(0.1)
            shared.close()

        def train() -> None:
            while True:
                try:
                    draw = shared.draw(1, 1.0)
                except Closed:
                    return
                if draw is not None:
                    drawn.extend(slots.time_steps[draw.slots].tolist())
                    shared.release(draw)

        threads.spawn(fill, name="receiver")
        threads.spawn(train, name="training")
        threads.run(limit_s=60.0)
    assert drawn == list(range(12))
