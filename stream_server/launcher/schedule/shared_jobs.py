"""Jobs that several simulations share: who is in them, when they are over, and whose fault a failure is. Pure."""

from collections.abc import Mapping, Sequence

from stream_server.launcher.schedule.simulation import ScheduledSimulation

ENDED_WITH_JOB = "was ended with its job"


class SharedJobs:
    """The jobs of several simulations, which end only when all of them have. One alone is a job of one member."""

    def __init__(self, simulations: Mapping[int, ScheduledSimulation]) -> None:
        self._simulations = simulations

    def members(self, it: ScheduledSimulation) -> list[ScheduledSimulation]:
        """Those in the job of this one, itself first."""
        return [it, *self._others(it)]

    def waits(self, it: ScheduledSimulation) -> bool:
        """Whether this simulation is done while its shared job still runs for another."""
        return it.is_spent and not all(mate.is_spent for mate in self._others(it))

    def give_time_to_end(self, it: ScheduledSimulation, now: float) -> None:
        """This may be the last one for which its job ran: from now on that has the timeout to end."""
        it.quiet_since = now
        for mate in self._others(it):
            mate.quiet_since = now if mate.is_spent else mate.quiet_since

    def cancel(self, it: ScheduledSimulation) -> None:
        """The job of this one is cancelled, since its clock has run out."""
        members = self.members(it)
        decide(it, members)
        for each in members:
            each.cancelled = True

    def _others(self, it: ScheduledSimulation) -> list[ScheduledSimulation]:
        known = (self._simulations.get(simulation) for simulation in it.job_members)
        return [mate for mate in known if mate and mate is not it and mate.has_job and it.id in mate.job_members]


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
