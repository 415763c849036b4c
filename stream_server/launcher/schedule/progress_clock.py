"""The clock of simulations that hang: since when each has been quiet, and when that is too long. Pure.

Why: docs/decisions/0067-progress-clock.md
"""

import math
from collections.abc import Iterable
from heapq import heappop, heappush

from stream_server.launcher.schedule.shared_jobs import LiveAttempts, SharedJobs
from stream_server.launcher.schedule.simulation import ScheduledAttempt, ScheduledPhase

CONFIRM_S = 10.0
CONFIRM_FAILURE_S = 1.0


class ProgressClock:
    """Measures how long the server has had no new time step of an attempt, which may be `timeout_s`.

    The clock of an attempt stands still while the server holds the simulation back, and while others of its job come
    first. After the job has ended, the server has `CONFIRM_S` to say that it has all, or `CONFIRM_FAILURE_S` if the job
    failed. When a clock runs out, the `SimulationSchedule` cancels the job, or counts the attempt as failed.

    Most deadlines only move away, so a heap has for each running clock a time at which it runs out at the earliest,
    which is compared with the clock when that is the first one. Where a clock is set earlier or begins to run, `note`
    must be called.
    """

    def __init__(self, jobs: SharedJobs, live: LiveAttempts, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._jobs = jobs
        self._live = live
        self._heap: list[tuple[float, int]] = []
        self._noted: dict[int, float] = {}

    def note_job(self, attempt: ScheduledAttempt) -> None:
        """The clocks of this attempt and of those in its job may run out earlier than they did, or run again."""
        job = attempt.job
        first = None if job is None else job.first_unspent()
        # All that come after the first on the list of a worker wait for it.
        self.note(
            [attempt, first] if self._jobs.are_workers and first is not None else job.live.values() if job else ()
        )

    def note(self, attempts: Iterable[ScheduledAttempt]) -> None:
        """The clocks of these attempts may run out earlier than they did, or run again."""
        for attempt in attempts:
            deadline = self._deadline(attempt)
            if deadline is not None and deadline < self._noted.get(attempt.simulation, math.inf):
                self._noted[attempt.simulation] = deadline
                heappush(self._heap, (deadline, attempt.simulation))

    def earliest(self) -> float:
        """The time at which the first clock runs out; infinity if none runs."""
        while self._heap:
            noted, simulation = self._heap[0]
            attempt = self._live.get(simulation)
            if self._noted.get(simulation) == noted:
                deadline = None if attempt is None or self._waits(attempt) else self._deadline(attempt)
                if deadline == noted:
                    return noted
                del self._noted[simulation]
                if attempt is not None and deadline is not None:
                    self.note([attempt])
            heappop(self._heap)
        return math.inf

    def pop_late(self, now: float) -> ScheduledAttempt | None:
        """An attempt whose clock has run out, None if there is none; if it goes on, it must be noted again."""
        if self.earliest() > now:
            return None
        _, simulation = heappop(self._heap)
        del self._noted[simulation]
        return self._live.get(simulation)

    def restart(self, attempt: ScheduledAttempt, now: float) -> None:
        """Give the job of this attempt, which may be the last that it ran for, the whole timeout to end or to go on."""
        for member in self._jobs.members(attempt):
            if self._jobs.are_workers or member is attempt or member.is_spent:
                member.quiet_since = now

    def stood_still(self, seconds: float, now: float) -> None:
        """Leave out time in which the launcher itself did not listen."""
        for attempt in self._live:
            attempt.quiet_since = min(now, attempt.quiet_since + seconds)

    def _waits(self, attempt: ScheduledAttempt) -> bool:
        """Whether this one is done while its shared job still runs for another, or its turn is yet to come."""
        first = None if attempt.job is None else attempt.job.first_unspent()
        if attempt.is_spent:
            return first is not None
        return self._jobs.are_workers and attempt.has_job and first is not attempt

    def _deadline(self, attempt: ScheduledAttempt) -> float | None:
        """The deadline of an attempt, also if it waits for others of its job."""
        if attempt.phase is ScheduledPhase.ENDED:
            return attempt.quiet_since + (CONFIRM_S if attempt.ended_well else CONFIRM_FAILURE_S)
        if attempt.is_cancelled or attempt.blocked:
            return None
        # Steps that the server knows are not sent again: a new attempt is quiet until it has caught up.
        catching_up_s = attempt.reached_s if attempt.received == 0 and not attempt.is_spent else 0.0
        return attempt.quiet_since + self.timeout_s + catching_up_s
