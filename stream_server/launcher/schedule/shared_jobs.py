"""Jobs that several simulations share: who is in them, when they are over, and whose fault a failure is. Pure.

Why: docs/decisions/0055-several-in-one-job.md
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.simulation import ScheduledSimulation

ENDED_WITH_JOB = "was ended with its job"
BEHIND = "its worker has others before it"
MANY = 100


class LiveJob:
    """A job of which some members are `live`; `ids` are all."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.ids = frozenset(members)
        self.live: dict[int, ScheduledSimulation] = {}
        self._position = 0

    def first_unspent(self) -> ScheduledSimulation | None:
        """The first member, in their order, that has its job and of which more is to come."""
        # A member that is spent, or without a job, stays so: none is looked at twice.
        while self._position < len(self.members):
            it = self.live.get(self.members[self._position])
            if it is not None and it.has_job and not it.is_spent:
                return it
            self._position += 1
        return None


class LiveSimulations:
    """Simulations and their jobs.

    Those of one job share the very tuple `job_members`. `attached` are those that clients run without a job.
    """

    def __init__(self) -> None:
        self.attached: dict[int, ScheduledSimulation] = {}
        self._all: dict[int, ScheduledSimulation] = {}
        # By the address of the tuple, which the job keeps, so that no other one gets it.
        self._jobs: dict[int, LiveJob] = {}
        self._job_of: dict[int, LiveJob] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, simulation: int) -> bool:
        return simulation in self._all

    def __iter__(self) -> Iterator[ScheduledSimulation]:
        return iter(list(self._all.values()))

    def get(self, simulation: int) -> ScheduledSimulation | None:
        """The simulation of this id, if it is live."""
        return self._all.get(simulation)

    @property
    def num_jobs(self) -> int:
        """How many jobs are not over for all of their members."""
        return len(self._jobs)

    def of_job(self, it: ScheduledSimulation) -> list[ScheduledSimulation]:
        """The live simulations of the job that this one was in last."""
        job = self._jobs.get(id(it.job_members))
        return [] if job is None else list(job.live.values())

    def first_unspent(self, it: ScheduledSimulation) -> ScheduledSimulation | None:
        """The first simulation in the job of this one of which more is to come."""
        job = self._jobs.get(id(it.job_members))
        return None if job is None else job.first_unspent()

    def add(self, it: ScheduledSimulation) -> None:
        """An attempt begins or goes on."""
        job = self._jobs.get(id(it.job_members))
        if self._all.get(it.id) is it and job is not None and self._job_of.get(it.id) is job:
            return
        self.discard(it.id)
        self._all[it.id] = it
        if it.attached:
            self.attached[it.id] = it
            return
        if job is None or id(it.job_members) not in self._jobs:
            job = self._jobs[id(it.job_members)] = LiveJob(it.job_members)
        job.live[it.id] = it
        self._job_of[it.id] = job

    def discard(self, simulation: int) -> None:
        """Remove a simulation, of which nothing more is awaited, if it is here."""
        self._all.pop(simulation, None)
        self.attached.pop(simulation, None)
        job = self._job_of.pop(simulation, None)
        if job is not None:
            del job.live[simulation]
            if not job.live:
                del self._jobs[id(job.members)]

    def shares_a_job(self, simulation: int) -> bool:
        """Whether another one is live that was in a job with this one."""
        return any(simulation in job.ids and job.live.keys() - {simulation} for job in self._jobs.values())


class SharedJobs:
    """The jobs of several simulations, which end only when all of them have. One alone is a job of one member.

    The members run side by side, or, where the jobs `are_workers`, one after another, in the order of `job_members`.
    """

    def __init__(self, simulations: Mapping[int, ScheduledSimulation], limits: ScheduleLimits) -> None:
        self._simulations = simulations
        self._limits = limits
        self.are_workers = limits.per_worker > 1

    def num_in_next(self, num_waiting: int) -> int:
        """How many simulations the next job gets, of those that wait."""
        limits = self._limits
        if not self.are_workers:
            return limits.per_job
        return num_for_worker(num_waiting, most=limits.per_worker, max_running=limits.max_running)

    def members(self, it: ScheduledSimulation) -> list[ScheduledSimulation]:
        """The simulations in the job of this one, itself first."""
        return [it, *self._others(it)]

    def is_behind(self, it: ScheduledSimulation) -> bool:
        """Whether its worker has yet to come to this simulation, as far as is known."""
        if not (self.are_workers and it.has_job):
            return False
        before = takewhile(lambda simulation: simulation != it.id, it.job_members)
        return any(not mate.is_spent for simulation in before if (mate := self._mate(simulation, it)))

    def what_comes_before(self, simulation: int) -> str | None:
        """Why the job of this attempt has not come to it yet though it runs; None if it has."""
        return BEHIND if self.is_behind(self._simulations[simulation]) else None

    def attempts_of_worker(self, simulation: int) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
        """The attempt of this simulation that a worker runs, and the one that it comes to next; None without one."""
        it = self._simulations.get(simulation)
        if it is None or not (self.are_workers and it.has_job):
            return None
        following = self._following(it)
        return (it.id, it.attempt), None if following is None else (following.id, following.attempt)

    def has_moved_on(self, it: ScheduledSimulation) -> bool:
        """Whether the worker of this simulation is done with it, and computes others now."""
        is_done = self.are_workers and it.has_job and it.is_spent
        return is_done and not all(mate.is_spent for mate in self._others(it))

    def was_not_begun(self, it: ScheduledSimulation) -> bool:
        """Whether the worker of this simulation has ended before it came to it, as far as is known."""
        return self.are_workers and it.id != it.job_members[0] and it.received == 0

    def is_last(self, it: ScheduledSimulation) -> bool:
        """Whether its worker, if it has one, had nothing to compute after this simulation."""
        return not self.are_workers or it.id == it.job_members[-1]

    def num(self, live: LiveSimulations) -> int:
        """How many of `max_running` these take, the attached ones apart: workers are as one simulation."""
        return live.num_jobs if self.are_workers else len(live) - len(live.attached)

    def cancel(self, it: ScheduledSimulation) -> None:
        """The job of this one is cancelled, since its clock has run out."""
        members = self.members(it)
        decide(it, members)
        for each in members:
            each.cancelled = True

    def _following(self, it: ScheduledSimulation) -> ScheduledSimulation | None:
        after = it.job_members[it.job_members.index(it.id) + 1 :]
        return next((mate for simulation in after if (mate := self._mate(simulation, it))), None)

    def _others(self, it: ScheduledSimulation) -> list[ScheduledSimulation]:
        return [mate for simulation in it.job_members if (mate := self._mate(simulation, it))]

    def _mate(self, simulation: int, it: ScheduledSimulation) -> ScheduledSimulation | None:
        """The simulation of this id, if it is another one in the job of `it`, which still runs for it; None if not."""
        mate = self._simulations.get(simulation)
        if mate is None or mate is it or not mate.has_job:
            return None
        return mate if mate.job_members is it.job_members or it.id in mate.job_members else None


def num_for_worker(num_waiting: int, *, most: int, max_running: int) -> int:
    """How many simulations the next worker gets, of those that wait.

    Guided self-scheduling (Polychronopoulos and Kuck, 1987), with half the usual share: fewer towards the end, so that
    no worker has a long list left when the others have none.
    """
    return max(1, min(most, math.ceil(num_waiting / (2 * max_running))))


def excuse_of_failed(culprit: int) -> str:
    """The excuse of those whose job another one has brought down."""
    return f"simulation {culprit}, which shared the job, failed"


def decide(cause: ScheduledSimulation, members: Sequence[ScheduledSimulation]) -> None:
    """Record what the end of each member will mean, before the job is cancelled: exit codes after that say nothing.

    `cause` is the member whose clock has run out. It is to blame only if no rank of any member has failed by itself:
    those that wait for one that failed are quiet, too.
    """
    culprit = next((it.id for it in members if it.at_fault), None)
    for it in members:
        if it.at_fault:
            it.reason = it.at_fault
        elif it.over:
            continue
        elif culprit is not None:
            it.reason, it.excuse = ENDED_WITH_JOB, it.excuse or excuse_of_failed(culprit)
        elif it is not cause:
            excuse = f"simulation {cause.id}, which shared the job, was cancelled"
            it.reason, it.excuse = ENDED_WITH_JOB, it.excuse or excuse
