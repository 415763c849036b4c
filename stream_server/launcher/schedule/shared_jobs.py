"""Jobs that several simulations share: who is in them, when they are over, and whose fault a failure is. Pure.

Why: docs/decisions/0055-several-in-one-job.md
"""

import math
from collections.abc import Iterator
from itertools import dropwhile, takewhile

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.simulation import ScheduledAttempt, ScheduledPhase

ENDED_WITH_JOB = "was ended with its job"
BEHIND = "its worker has others before it"
MANY = 100


class LiveAttempts:
    """The newest attempts of simulations that run, and of those whose job has not ended.

    `attached` are those that clients run without a job, and `num_jobs` counts the jobs of the others.
    """

    def __init__(self) -> None:
        self.attached: dict[int, ScheduledAttempt] = {}
        self.num_jobs = 0
        self._all: dict[int, ScheduledAttempt] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, simulation: int) -> bool:
        return simulation in self._all

    def __iter__(self) -> Iterator[ScheduledAttempt]:
        return iter(list(self._all.values()))

    def get(self, simulation: int) -> ScheduledAttempt | None:
        return self._all.get(simulation)

    def add(self, attempt: ScheduledAttempt) -> None:
        """An attempt begins or goes on."""
        if self._all.get(attempt.simulation) is attempt:
            return
        self.discard(attempt.simulation)
        self._all[attempt.simulation] = attempt
        if attempt.job is None:
            self.attached[attempt.simulation] = attempt
        else:
            self.num_jobs += not attempt.job.live
            attempt.job.live[attempt.simulation] = attempt

    def discard(self, simulation: int) -> None:
        """Remove the attempt of a simulation, of which nothing more is awaited, if it is here."""
        attempt = self._all.pop(simulation, None)
        self.attached.pop(simulation, None)
        if attempt is not None and attempt.job is not None:
            del attempt.job.live[simulation]
            self.num_jobs -= not attempt.job.live


class SharedJobs:
    """The jobs of several simulations, which end only when all of them have. One alone is a job of one member.

    The members run side by side, or, where the jobs `are_workers`, one after another, in their order.
    """

    def __init__(self, live: LiveAttempts, limits: ScheduleLimits) -> None:
        self._live = live
        self._limits = limits
        self.are_workers = limits.per_worker > 1

    @property
    def num(self) -> int:
        """Number of `max_running` that is taken, without attached ones; a worker counts as one simulation."""
        return self._live.num_jobs if self.are_workers else len(self._live) - len(self._live.attached)

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
        if not (self.are_workers and attempt.job is not None and attempt.has_job):
            return False
        return any(not mate.is_spent for mate in takewhile(lambda mate: mate is not attempt, attempt.job.running))

    def what_comes_before(self, simulation: int) -> str | None:
        """Why the job of this simulation has not come to it yet though it runs; None if it has."""
        attempt = self._live.get(simulation)
        return BEHIND if attempt is not None and self.is_behind(attempt) else None

    def attempts_of_worker(self, simulation: int) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
        """The attempt of this simulation that a worker runs, and the one that it comes to next; None without one."""
        attempt = self._live.get(simulation)
        if attempt is None or attempt.job is None or not (self.are_workers and attempt.has_job):
            return None
        _, *after = dropwhile(lambda mate: mate is not attempt, attempt.job.running)
        return (attempt.simulation, attempt.number), (after[0].simulation, after[0].number) if after else None

    def has_moved_on(self, attempt: ScheduledAttempt) -> bool:
        """Whether the worker of this attempt is done with it, and computes others now."""
        is_done = self.are_workers and attempt.is_spent and not attempt.is_cancelled
        return is_done and not all(mate.is_spent for mate in _mates(attempt))

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
