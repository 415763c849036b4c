"""The jobs of the attempts: which attempts share one, and how each of them ended."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stream_server.launcher.attempts import CONNECTION_FILE, Attempts
from stream_server.launcher.blame import Attempt, AttemptEnd, Traces, ends
from stream_server.launcher.job_spec import JobSpec
from stream_server.launcher.jobs import LocalJobs
from stream_server.launcher.mpirun import Mpirun
from stream_server.launcher.processes import Leader


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksEnded:
    """Ranks of an attempt have ended by themselves while its job runs on; `over` when none is left.

    `at_fault` tells how one of them failed, "" if none did.
    """

    simulation: int
    attempt: int
    at_fault: str
    over: bool


@dataclass(frozen=True, slots=True)
class _Running:
    """The attempts in a job, of `ranks` ranks each, and what was told of them."""

    attempts: tuple[Attempt, ...]
    ranks: int
    told: dict[Attempt, RanksEnded] = field(default_factory=dict)


class AttemptJobs:
    """Starts, ends and watches the jobs of attempts, each of which is a simulation and a number. Main thread only.

    `mpirun` is None when each simulation is a program of its own.
    """

    def __init__(self, jobs: LocalJobs, attempts: Attempts, mpirun: Mpirun | None) -> None:
        self.jobs = jobs
        self.attempts = attempts
        self.mpirun = mpirun
        self._running: dict[Path, _Running] = {}

    @property
    def ranks(self) -> int:
        """How many ranks an attempt has."""
        return self.mpirun.ranks if self.mpirun else 1

    @property
    def busy(self) -> bool:
        """Some job is on its way out."""
        return self.jobs.busy

    def submit(self, specs: Mapping[Attempt, JobSpec]) -> Leader | None:
        """Start these in one job; returns its first process, None when there is none."""
        spec = self.mpirun.job(list(specs.values())) if self.mpirun else next(iter(specs.values()))
        self._running[spec.folder] = _Running(tuple(specs), self.ranks)
        return self.jobs.submit(spec)

    def adopt(self, job: Path, attempts: Sequence[Attempt], leader: Leader | None, *, ranks: int) -> None:
        """Watch a job that another launcher has started in a folder for these attempts, with as many ranks each."""
        marks = frozenset(str(self.attempts.folder(*attempt) / CONNECTION_FILE) for attempt in attempts)
        self._running[job] = _Running(tuple(attempts), ranks)
        self.jobs.adopt(job, marks, leader)

    def cancel(self, attempts: Collection[Attempt], now: float) -> None:
        """End their jobs."""
        self.jobs.cancel_all({job for job, it in self._running.items() if set(it.attempts) & set(attempts)}, now)

    def poll(self, now: float) -> list[AttemptEnd]:
        """The attempts that have ended since the last call, once no process of their job is left."""
        ended = []
        for job in self.jobs.poll(now):
            it = self._running.pop(job.folder)
            folders = {attempt: self.attempts.folder(*attempt) for attempt in it.attempts}
            ended += ends(folders, job, num_ranks=it.ranks)
        return ended

    def ranks_ended(self) -> Iterator[RanksEnded]:
        """The attempts in shared jobs that run of which ranks have ended since the last call.

        Under MPICH a job goes on when a rank ends that has not called MPI_Init.
        """
        for it in self._running.values():
            for simulation, number in it.attempts if len(it.attempts) > 1 else ():
                traces = Traces.of_running(self.attempts.folder(simulation, number))
                found = RanksEnded(
                    simulation=simulation, attempt=number, at_fault=traces.at_fault, over=traces.all_ended(it.ranks)
                )
                if traces.codes and it.told.get((simulation, number)) != found:
                    it.told[simulation, number] = found
                    yield found
