"""The backend `local`: jobs are processes of this machine, each job in a session of its own.

Whether a job runs is read from /proc, since a daemonised process leaves the session and outlives the first one.

Why: docs/decisions/0049-walk-through-proc.md
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    SubmitError,
    describe,
    exit_code_of,
    shell_of,
)
from stream_server.launcher.backends.mpirun import missing_program
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.machine import processes, shared_memory
from stream_server.machine.processes import Leader, Process
from stream_server.machine.run_folder import SIMULATIONS

GRACE_S = 5.0
KILL_WAIT_S = 2.0
LOOK_S = 0.01
MARK = "STREAM_CONNECTION"
NOT_FOUND = 127

NOTHING_LEFT = JobStatus(state=JobState.ENDED, reason="ended while no launcher watched it, without a word")


@dataclass(kw_only=True, slots=True, eq=False)
class LocalJob:
    """`process` is that of a job of our own; one that was taken over has a `leader`, if that is known.

    What ranks share that are killed is in `shared`: they do not take it away.
    """

    folder: Path
    marks: frozenset[str]
    leader: Leader | None
    process: "subprocess.Popen[bytes] | None" = None
    end: JobStatus | None = None
    kill_at: float | None = None
    terminated: set[int] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)

    def members(self, running: list[Process]) -> set[int]:
        return processes.members(running, self.leader, self.marks)

    def terminate(self, members: set[int]) -> None:
        """TERM to those that have not had it: a shell that got it may start its command just after.

        The copy that the shell has forked for that takes TERM as the shell does, and becomes the command then.
        """
        new = members - self.terminated
        self._note_shared_memory(new)
        shell = shell_of(self.folder)
        copies = {pid for pid in new if processes.command_line(pid)[: len(shell)] == shell}
        copies -= {self.leader.pid} if self.leader else set()
        processes.send(new, signal.SIGTERM)
        self.terminated |= new - copies

    def kill(self, members: set[int]) -> None:
        self._note_shared_memory(members)
        processes.send(members, signal.SIGKILL)

    def how_it_ended(self) -> JobStatus | None:
        # The first process before the file: it writes how the job ended before it goes.
        is_gone = self.process is not None and self.process.poll() is not None
        code = exit_code_of(self.folder / EXIT_FILE)
        if code is not None:
            return JobStatus(state=JobState.ENDED, exit_code=code, reason=describe(code))
        return JobStatus(state=JobState.ENDED, reason="was killed from outside") if is_gone else None

    @property
    def is_first_over(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return self.leader is None or not self.leader.alive

    def _note_shared_memory(self, members: set[int]) -> None:
        for pid in members:
            self.shared |= shared_memory.names_of(pid)


class LocalBackend(Backend):
    """Jobs on this machine; see `Backend`. `grace_s`: the time between TERM and KILL, in seconds.

    A handle names the first process of a job by its number, its start time and the start of the machine.
    """

    query_interval_s = 0.0

    def __init__(
        self, config: StudyConfig | None = None, kind: JobKind | None = None, *, grace_s: float = GRACE_S
    ) -> None:
        self.grace_s = grace_s
        self._config = config
        self._jobs: dict[str, LocalJob] = {}

    def check(self) -> None:
        """Refuse a study whose simulations name a program that is not here.

        Raises:
            ConfigError: the program, or the script that an interpreter is given, is missing.
        """
        if self._config is not None and (problem := missing_program(self._config)):
            raise ConfigError(problem)

    def submit(self, spec: JobSpec) -> str:
        """Start a job.

        Raises:
            SubmitError: its command does not exist, or the system refuses another process.
        """
        if not _exists(spec):
            text = f"the command {spec.command[0]!r} was not found or cannot be executed"
            raise SubmitError(text, exit_code=NOT_FOUND)
        try:
            process = subprocess.Popen(
                spec.shell_command,
                cwd=spec.folder,
                env=dict(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SubmitError(f"could not be started: {error}") from error
        try:
            leader = Leader.of(process.pid)
        except OSError:
            leader = None
        leader = leader or Leader(pid=process.pid, started=0)
        handle = f"{leader.pid} {leader.started} {processes.this_boot()}"
        self._jobs[handle] = LocalJob(folder=spec.folder, marks=spec.marks, leader=leader, process=process)
        return handle

    def reattach(self, job: SavedJob) -> str:
        """Watch a job of another launcher. It runs as long as any process of it does."""
        handle = job.handle or f"unknown {job.folder}"
        self._jobs[handle] = LocalJob(folder=job.folder, marks=job.marks, leader=_leader_of(handle))
        return handle

    def cancel(self, handles: Collection[str]) -> None:
        """TERM to all processes of these jobs now, KILL to those that are left after the grace."""
        jobs = [job for handle in handles if (job := self._jobs.get(handle)) and job.kill_at is None]
        for job in jobs:
            job.kill_at = time.monotonic() + self.grace_s
        running = _running(jobs) if jobs else []
        for job in jobs:
            job.terminate(job.members(running))

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Look at these jobs; kill what is left of one that has ended, or whose grace is over."""

        @cache
        def running() -> list[Process]:
            return _running([job for handle in handles if (job := self._jobs.get(handle))])

        statuses = {}
        for handle in handles:
            if (job := self._jobs.get(handle)) is None:
                continue
            if job.end is None:
                job.end = job.how_it_ended()
            if job.end is None and job.is_first_over and not job.members(running()):
                job.end = job.how_it_ended() or NOTHING_LEFT
            is_ending = job.end is not None or job.kill_at is not None
            statuses[handle] = self._status(job, job.members(running()) if is_ending else set())
            if statuses[handle].state is JobState.ENDED:
                del self._jobs[handle]
        return statuses

    def close(self) -> None:
        """Kill what still runs, without a grace: cancel and query before, where one is wanted."""
        deadline = time.monotonic() + KILL_WAIT_S
        for job in self._jobs.values():
            job.kill_at = 0.0
        while self._jobs and time.monotonic() < deadline:
            self.query(list(self._jobs))
            if self._jobs:
                time.sleep(LOOK_S)
        if self._config is not None:
            # A launcher may be killed between the fork of a job, which has no mark yet, and its exec: the next one does
            # not find it, takes it for ended, and the job begins after that.
            processes.end_all(MARK, self._config.output_dir / SIMULATIONS, 0.0)

    def _status(self, job: LocalJob, members: set[int]) -> JobStatus:
        if job.end is None and job.kill_at is None:
            return JobStatus(state=JobState.RUNNING)
        if job.end is None and job.kill_at is not None and time.monotonic() < job.kill_at:
            job.terminate(members)
            return JobStatus(state=JobState.ENDING)
        # What a simulation leaves running would go on beside its next attempt.
        job.kill(members)
        if members or job.end is None:
            return JobStatus(state=JobState.ENDING)
        if job.process is not None:
            job.process.poll()
        shared_memory.remove(job.shared)
        return job.end


def _running(jobs: Sequence[LocalJob]) -> list[Process]:
    """All processes that may belong to one of these jobs, and others."""
    return processes.running(MARK, since=min(job.leader.started if job.leader else 0 for job in jobs))


def _exists(spec: JobSpec) -> bool:
    program = spec.command[0]
    place = str(spec.folder / program) if "/" in program else program
    return shutil.which(place, path=spec.environment.get("PATH", os.defpath)) is not None


def _leader_of(handle: str) -> Leader | None:
    """The first process of a job; None if it is not known, or was one of another start of the machine."""
    pid, _, rest = handle.partition(" ")
    started, _, boot = rest.partition(" ")
    is_ours = pid.isdecimal() and started.isdecimal() and int(started) > 0 and boot == processes.this_boot()
    return Leader(pid=int(pid), started=int(started)) if is_ours else None
