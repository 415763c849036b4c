"""Ranks that are threads of one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.fakes.meeting_ranks import MeetingRanks

DEADLINE_S = 60.0

T = TypeVar("T")


class Aborted(Exception):
    """Some rank called `abort`, with this exit code."""


class Meeting:
    """A meeting at which R threads exchange one value each, again and again."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any, timeout_s: float = DEADLINE_S) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait(timeout_s)
        values = list(self._values)
        self._barrier.wait(timeout_s)
        return values

    def break_up(self) -> None:
        self._barrier.abort()


class Job:
    """The state that the ranks of one job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds = Meeting(size)
        self.others = Meeting(size)
        self.exit_code: int | None = None


class ThreadRanks(MeetingRanks):
    """One thread's rank; the same promises as MpiRanks, `sum` apart from all other collectives included."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self._job = job
        self.num_rounds = 0

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        self.num_rounds += 1
        return super().sum(values)

    def offer(self, values: NDArray[np.int64], timeout_s: float) -> NDArray[np.int64] | None:
        try:
            total: NDArray[np.int64] = np.sum(self._job.rounds.exchange(self.rank, values.copy(), timeout_s), axis=0)
        except threading.BrokenBarrierError:
            return None
        return total

    def abort(self, exit_code: int) -> NoReturn:
        self._job.exit_code = exit_code
        self._job.rounds.break_up()
        self._job.others.break_up()
        raise Aborted(exit_code)

    def _meet(self, meeting: Meeting, value: Any) -> list[Any]:
        try:
            return meeting.exchange(self.rank, value)
        except threading.BrokenBarrierError:
            raise Aborted(self._job.exit_code) from None


def on_ranks(size: int, function: Callable[[ThreadRanks], T]) -> list[T]:
    """Call `function` on `size` ranks at once; gives what each returned, or raises what the lowest one raised."""
    job = Job(size)
    with ThreadPoolExecutor(size, thread_name_prefix="rank") as pool:
        calls = [pool.submit(function, ThreadRanks(job, rank)) for rank in range(size)]
        return [call.result() for call in calls]
