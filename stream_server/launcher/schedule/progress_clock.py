"""The clock of simulations that hang: since when each has been quiet, and when that is too long. Pure."""

from collections.abc import Iterator

from stream_server.launcher.schedule.live import LiveSimulations
from stream_server.launcher.schedule.shared_jobs import SharedJobs
from stream_server.launcher.schedule.simulation import ScheduledSimulation, ScheduledState

CONFIRM_S = 10.0
CONFIRM_FAILURE_S = 1.0


class ProgressClock:
    """Measures how long the server has had no new time step of an attempt, which may be `timeout_s`.

    The clock of an attempt stands still while the server holds the simulation back, and while others of its job come
    first. After the job has ended, the server has `CONFIRM_S` to say that it has all, or `CONFIRM_FAILURE_S` if the job
    failed. When a clock runs out, the `SimulationSchedule` cancels the job, or counts the attempt as failed.
    """

    def __init__(self, jobs: SharedJobs, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._jobs = jobs

    def deadline(self, it: ScheduledSimulation) -> float | None:
        """The time at which the clock of this attempt runs out, None while it stands still."""
        return None if self._jobs.waits(it) else self._deadline(it)

    def deadlines(self, live: LiveSimulations) -> list[tuple[ScheduledSimulation, float]]:
        """The attempts whose clock runs, and when it runs out."""
        timed = ((it, self._deadline(it)) for it in self._timed(live))
        return [(it, deadline) for it, deadline in timed if deadline is not None]

    def restart(self, it: ScheduledSimulation, now: float) -> None:
        """Give the job of this attempt, which may be the last that it ran for, the whole timeout to end or to go on."""
        for member in self._jobs.members(it):
            if member is it or member.is_spent or self._jobs.are_workers:
                member.quiet_since = now

    def stood_still(self, live: LiveSimulations, seconds: float, now: float) -> None:
        """Leave out time in which the launcher itself did not listen."""
        for it in live:
            it.quiet_since = min(now, it.quiet_since + seconds)

    def _deadline(self, it: ScheduledSimulation) -> float | None:
        if it.cancelled or (it.blocked and it.state is ScheduledState.RUNNING):
            return None
        if it.state is ScheduledState.EXITED:
            return it.quiet_since + (CONFIRM_S if it.ended_well else CONFIRM_FAILURE_S)
        # Steps that the server knows are not sent again: a new attempt is quiet until it has caught up.
        catching_up_s = it.reached_s if it.state is ScheduledState.RUNNING and it.received == 0 else 0.0
        return it.quiet_since + self.timeout_s + catching_up_s

    def _timed(self, live: LiveSimulations) -> Iterator[ScheduledSimulation]:
        """Go through the live simulations that do not wait for others of their job."""
        yield from live.attached.values()
        for job in live.jobs:
            if not self._jobs.are_workers or job.has_ended:
                yield from (it for it in job.live.values() if not self._jobs.waits(it))
            elif (first := job.first_unspent()) is not None:
                yield first
            else:
                # All are spent, so that none waits for another.
                yield from job.live.values()
