"""The jobs of the attempts: which attempts share one, and how each of them ended."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stream_server.launcher.attempts import CONNECTION_FILE, Attempts
from stream_server.launcher.blame import Attempt, AttemptEnd, ends
from stream_server.launcher.job_spec import JobSpec
from stream_server.launcher.jobs import LocalJobs
from stream_server.launcher.mpirun import Mpirun
from stream_server.launcher.processes import Leader


class AttemptJobs:
    """Starts, ends and watches the jobs of attempts, each of which is a simulation and a number. Main thread only.

    `mpirun` is None when each simulation is a program of its own.
    """

    def __init__(self, jobs: LocalJobs, attempts: Attempts, mpirun: Mpirun | None) -> None:
        self.jobs = jobs
        self.attempts = attempts
        self.mpirun = mpirun
        self._running: dict[Path, tuple[Attempt, ...]] = {}

    @property
    def busy(self) -> bool:
        """Some job is on its way out."""
        return self.jobs.busy

    def submit(self, specs: Mapping[Attempt, JobSpec]) -> Leader | None:
        """Start these in one job; returns its first process, None when there is none."""
        spec = self.mpirun.job(list(specs.values())) if self.mpirun else next(iter(specs.values()))
        self._running[spec.folder] = tuple(specs)
        return self.jobs.submit(spec)

    def adopt(self, job: Path, attempts: Sequence[Attempt], leader: Leader | None) -> None:
        """Watch a job that another launcher has started in a folder for these attempts."""
        marks = frozenset(str(self.attempts.folder(*attempt) / CONNECTION_FILE) for attempt in attempts)
        self._running[job] = tuple(attempts)
        self.jobs.adopt(job, marks, leader)

    def cancel(self, attempts: Collection[Attempt], now: float) -> None:
        """End their jobs."""
        self.jobs.cancel_all({job for job, members in self._running.items() if set(members) & set(attempts)}, now)

    def poll(self, now: float) -> list[AttemptEnd]:
        """The attempts that have ended since the last call, once no process of their job is left."""
        ended = []
        for job in self.jobs.poll(now):
            folders = {attempt: self.attempts.folder(*attempt) for attempt in self._running.pop(job.folder)}
            ended += ends(folders, job, num_ranks=self.mpirun.ranks if self.mpirun else 1)
        return ended
