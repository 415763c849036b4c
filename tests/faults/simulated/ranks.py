"""The ranks of a simulated MPI job: each a process, and collectives that wait for all of them."""

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tests.fakes.meeting_ranks import MeetingRanks
from tests.faults.simulated.machine import Machine, Program
from tests.faults.simulated.threads import Threads


class Meeting:
    """A meeting at which ranks exchange one value each, repeatedly. Waiting for a rank that died never ends."""

    def __init__(self, threads: Threads, size: int) -> None:
        self._threads = threads
        self._size = size
        self._num_met = [0] * size
        self._values: dict[int, dict[int, Any]] = {}

    def exchange(self, rank: int, value: Any, timeout_s: float | None = None) -> list[Any] | None:
        """The values of the ranks, in their order; None when they did not all come in time."""
        number = self._num_met[rank]
        self._num_met[rank] += 1
        values = self._values.setdefault(number, {})
        values[rank] = value
        if not self._threads.wait(lambda: len(values) == self._size, timeout_s, "collective"):
            return None
        self._values.pop(number, None)
        return [values[rank] for rank in range(self._size)]


class Job:
    """The state that the ranks of one start of the server share; `members` are their processes."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine = machine
        self.size = size
        self.rounds = Meeting(machine.threads, size)
        self.others = Meeting(machine.threads, size)
        self.members: list[Program] = []


class SimulatedRanks(MeetingRanks):
    """One rank's view."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self._job = job

    def offer(self, values: NDArray[np.int64], timeout_s: float) -> NDArray[np.int64] | None:
        met = self._job.rounds.exchange(self.rank, values.copy(), timeout_s)
        return None if met is None else np.asarray(np.sum(met, axis=0))

    def abort(self, exit_code: int) -> NoReturn:
        machine = self._job.machine
        me = machine.current
        for program in self._job.members:
            if program is not me:
                machine.end(program, exit_code)
        machine.end(me, exit_code)
        raise AssertionError("a program that was aborted goes on")

    def _meet(self, meeting: Meeting, value: Any) -> list[Any]:
        met = meeting.exchange(self.rank, value)
        assert met is not None
        return met
