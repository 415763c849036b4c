"""The simulations that run, or of whose job the last word is awaited, by their jobs. Pure."""

from collections.abc import Iterator

from stream_server.launcher.schedule.simulation import ScheduledSimulation


class LiveJob:
    """A job of which some members are `live`; `ids` are all."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.ids = frozenset(members)
        self.live: dict[int, ScheduledSimulation] = {}


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
