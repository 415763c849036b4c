"""Jobs that several simulations share: who is in them, when they are over or hang, and whose fault a failure is. Pure.

Why: docs/decisions/0055-several-in-one-job.md
Why: docs/decisions/0067-progress-clock.md
"""

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import dropwhile, takewhile

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.simulation import ScheduledAttempt, ScheduledPhase

ENDED_WITH_JOB = "was ended with its job"
BEHIND = "its worker has others before it"
MANY = 100

CONFIRM_S = 10.0
CONFIRM_FAILURE_S = 1.0


class SharedJobs:
    """The newest attempts of simulations that run, or whose job has not ended, and the jobs that they are in.

    A job of several simulations ends only when all of them have; one alone is a job of one member. The members run side
    by side, or, where the jobs `are_workers`, one after another, in their order. `attached` are the attempts that
    clients run without a job, and `num_jobs` counts the jobs of the others.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        self._limits = limits
        self.are_workers = limits.per_worker > 1
        self.attached: dict[int, ScheduledAttempt] = {}
        self.num_jobs = 0
        self._live: dict[int, ScheduledAttempt] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, simulation: int) -> bool:
        return simulation in self._live

    def __iter__(self) -> Iterator[ScheduledAttempt]:
        return iter(list(self._live.values()))

    def get(self, simulation: int) -> ScheduledAttempt | None:
        return self._live.get(simulation)

    def add(self, attempt: ScheduledAttempt) -> None:
        """An attempt begins or goes on."""
        if self._live.get(attempt.simulation) is attempt:
            return
        self.discard(attempt.simulation)
        self._live[attempt.simulation] = attempt
        if attempt.job is None:
            self.attached[attempt.simulation] = attempt
        else:
            self.num_jobs += not attempt.job.live
            attempt.job.live[attempt.simulation] = attempt

    def discard(self, simulation: int) -> None:
        """Remove the attempt of a simulation, if it is here: nothing more is expected of it."""
        attempt = self._live.pop(simulation, None)
        self.attached.pop(simulation, None)
        if attempt is not None and attempt.job is not None:
            del attempt.job.live[simulation]
            self.num_jobs -= not attempt.job.live

    @property
    def num(self) -> int:
        """Number of `max_running` that is taken, without attached ones; a worker counts as one simulation."""
        return self.num_jobs if self.are_workers else len(self._live) - len(self.attached)

    def num_in_next(self, num_waiting: int) -> int:
        """Number of waiting simulations that the next job gets."""
        limits = self._limits
        if not self.are_workers:
            return limits.per_job
        return num_for_worker(num_waiting, most=limits.per_worker, max_running=limits.max_running)

    def members(self, attempt: ScheduledAttempt) -> list[ScheduledAttempt]:
        """The attempts in the job of this one that have not ended, itself first."""
        return [attempt, *_mates(attempt)]

    def is_behind(self, attempt: ScheduledAttempt) -> bool:
        """Whether its worker has yet to come to this attempt, as far as is known."""
        return any(not mate.is_spent for mate in self.before(attempt))

    def what_comes_before(self, simulation: int) -> str | None:
        """Why the job of this simulation has not come to it yet though it runs; None if it has."""
        attempt = self._live.get(simulation)
        return BEHIND if attempt is not None and self.is_behind(attempt) else None

    def attempts_of_worker(self, simulation: int) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
        """The attempt of this simulation that a worker runs, and its next one; None without a worker."""
        attempt = self._live.get(simulation)
        if attempt is None or attempt.job is None or not (self.are_workers and attempt.has_job):
            return None
        _, *after = dropwhile(lambda mate: mate is not attempt, attempt.job.running)
        return (attempt.simulation, attempt.number), (after[0].simulation, after[0].number) if after else None

    def has_moved_on(self, attempt: ScheduledAttempt) -> bool:
        """Whether the worker of this attempt is done with it, and something has come of one after it.

        That the last server had all is not enough: the client may not have heard of it, and holds its time steps.
        """
        if not self.are_workers or not attempt.is_spent or attempt.is_cancelled or attempt.job is None:
            return False
        _, *after = dropwhile(lambda mate: mate is not attempt, attempt.job.running)
        return any(mate.received or mate.is_spent for mate in after)

    def before(self, attempt: ScheduledAttempt) -> list[ScheduledAttempt]:
        """The attempts on the list of the worker that runs this one, if one does, which come before it."""
        if not self.are_workers or attempt.job is None or not attempt.has_job or attempt.is_cancelled:
            return []
        return [*takewhile(lambda mate: mate is not attempt, attempt.job.running)]

    def was_not_begun(self, attempt: ScheduledAttempt) -> bool:
        """Whether the worker of this attempt has ended before it came to it, as far as is known."""
        return self.are_workers and attempt.simulation != attempt.members[0] and attempt.received == 0

    def is_last(self, attempt: ScheduledAttempt) -> bool:
        """Whether its worker, if it has one, had nothing to compute after this attempt."""
        return not self.are_workers or attempt.simulation == attempt.members[-1]

    def cancel(self, attempt: ScheduledAttempt) -> None:
        """The job of this one must be cancelled, since its clock has run out.

        What the end of each member will mean is decided now: exit codes after that say nothing. It is to blame only
        if no rank of any member has failed by itself: those that wait for one that failed are quiet, too.
        """
        assert attempt.job is not None
        members = self.members(attempt)
        culprit = next((mate.simulation for mate in members if mate.phase is ScheduledPhase.FAILED), None)
        of_others = f"simulation {attempt.simulation}, which shared the job, was cancelled"
        for mate in members:
            if culprit is not None:
                mate.cancel(ENDED_WITH_JOB, excuse_of_failed(culprit))
            elif mate is not attempt:
                mate.cancel(ENDED_WITH_JOB, of_others)
            else:
                mate.cancel()
        attempt.job.is_cancelled = True


def _mates(attempt: ScheduledAttempt) -> list[ScheduledAttempt]:
    return [] if attempt.job is None else [mate for mate in attempt.job.running if mate is not attempt]


def num_for_worker(num_waiting: int, *, most: int, max_running: int) -> int:
    """Number of waiting simulations that the next worker gets.

    Guided self-scheduling (Polychronopoulos and Kuck, 1987), with half the usual share: fewer towards the end, so that
    no worker has a long list left when the others have none.
    """
    return max(1, min(most, math.ceil(num_waiting / (2 * max_running))))


def excuse_of_failed(culprit: int) -> str:
    """The excuse of attempts whose job this simulation has brought down."""
    return f"simulation {culprit}, which shared the job, failed"


class ProgressClock:
    """Measures how long the server has had no new time step of an attempt, which may be `timeout_s`.

    The clock of an attempt stands still while the server holds the simulation back, and while others of its job come
    first. After the job has ended, the server has `CONFIRM_S` to say that it has all, or `CONFIRM_FAILURE_S` if the job
    failed. When a clock runs out, the `SimulationSchedule` cancels the job, or counts the attempt as failed.

    Most deadlines only move away, so a heap has for each running clock a time at which it runs out at the earliest,
    which is compared with the clock when that is the first one. Where a clock is set earlier or begins to run, `note`
    must be called.
    """

    def __init__(self, jobs: SharedJobs, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._jobs = jobs
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
            attempt = self._jobs.get(simulation)
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
        return self._jobs.get(simulation)

    def restart(self, attempt: ScheduledAttempt, now: float) -> None:
        """Give the job of this attempt, which may be the last that it ran for, the whole timeout to end or to go on."""
        for member in self._jobs.members(attempt):
            if self._jobs.are_workers or member is attempt or member.is_spent:
                member.quiet_since = now

    def stood_still(self, seconds: float, now: float) -> None:
        """Leave out time in which the launcher itself did not listen."""
        for attempt in self._jobs:
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
