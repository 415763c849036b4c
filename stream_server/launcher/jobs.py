"""Jobs on PSI/J, local ones: the only door to psij.

PSI/J starts a job. Whether it runs is read from the processes themselves, and how it ended from a file that the job's
own shell writes: PSI/J's final states are hints. Its cancel is not used for local jobs: it is SIGKILL at once, misses a
daemonised process, and ends PSI/J's only reaper thread when a process ends while it is being killed.
"""

import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psij
from psij.executors.local import LocalJobExecutor

from stream_server.launcher import processes, shared_memory
from stream_server.launcher.job_spec import LOG_FILE, Ended, JobSpec, describe, exit_code_of
from stream_server.launcher.processes import Leader, Process

GRACE_S = 5.0
KILL_WAIT_S = 2.0
MARK = "STREAM_CONNECTION"
EXIT_FILE = "job.exit"
NOT_FOUND = 127

# $0 is the job's folder, "$@" its command line. The shell leads the session, survives TERM to tell how its child ended,
# and lets go of PSI/J's pipe, to whose end PSI/J reads in its only thread.
SHELL = (
    f'exec </dev/null >>"$0/{LOG_FILE}" 2>&1; trap : HUP INT TERM; '
    f'"$@"; code=$?; echo $code >"$0/{EXIT_FILE}"; exit $code'
)


@dataclass(kw_only=True, slots=True)
class _Job:
    folder: Path
    marks: frozenset[str]
    adopted: bool = False
    leader: Leader | None = None
    ended: Ended | None = None
    kill_at: float | None = None
    told: set[int] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)

    def members(self, running: list[Process]) -> set[int]:
        return processes.members(running, self.leader, self.marks)

    def ask_to_end(self, running: list[Process]) -> None:
        """TERM to those that have not had it: a shell that got it may start its command just after."""
        untold = self.members(running) - self.told
        self.note_shared_memory(untold)
        processes.send(untold, signal.SIGTERM)
        self.told |= untold

    def note_shared_memory(self, members: set[int]) -> None:
        """Ranks that are about to be killed will not take away what they share."""
        for pid in members:
            self.shared |= shared_memory.names_of(pid)


class LocalJobs:
    """Jobs on this machine, each in a session of its own. Main thread only.

    `poll` moves things on: call it at each SIGCHLD, and every 0.1 s while `busy`.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        self._jobs: dict[Path, _Job] = {}

    def __enter__(self) -> Self:
        self._executor = _Executor()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill what still runs; who wants a grace cancels and polls before."""
        deadline = time.monotonic() + KILL_WAIT_S
        while self._jobs and time.monotonic() < deadline:
            running = processes.running(MARK)
            self._jobs = {folder: job for folder, job in self._jobs.items() if not _kill(job, running)}
            if self._jobs:
                time.sleep(0.01)

    @property
    def running(self) -> set[Path]:
        """The folders of the jobs that `poll` has not reported as ended."""
        return set(self._jobs)

    @property
    def busy(self) -> bool:
        """Some job is on its way out."""
        return any(job.kill_at is not None or job.ended is not None for job in self._jobs.values())

    def submit(self, spec: JobSpec) -> Leader | None:
        """Start a job; that its command does not exist is an end like any other, told by the next `poll`.

        Returns the first process of the job, None when there is none.
        """
        job = self._jobs[spec.folder] = _Job(folder=spec.folder, marks=spec.marks)
        (spec.folder / EXIT_FILE).unlink(missing_ok=True)
        if not _exists(spec):
            text = f"the command {spec.command[0]!r} was not found or cannot be executed"
            (spec.folder / LOG_FILE).write_text(f"{text}\n")
            job.ended = Ended(folder=spec.folder, exit_code=NOT_FOUND, reason=text)
            return None
        submitted = psij.Job(
            psij.JobSpec(
                executable=spec.command[0],
                arguments=list(spec.command[1:]),
                directory=spec.folder,
                inherit_environment=False,
                environment=dict(spec.environment),
            )
        )
        try:
            self._executor.submit(submitted)
        except psij.SubmitException as error:
            reason = f"could not be started: {error.exception or error}"
            job.ended = Ended(folder=spec.folder, exit_code=None, reason=reason)
            return None
        assert submitted.native_id is not None
        pid = int(submitted.native_id)
        job.leader = Leader.of(pid) or Leader(pid=pid, started=0)
        return job.leader

    def adopt(self, folder: Path, marks: frozenset[str], leader: Leader | None) -> None:
        """Watch a job that another launcher started, and that may have ended meanwhile.

        `marks` are as in its `JobSpec`, `leader` is the first of its processes if it is known. The job runs as
        long as any process of it does; PSI/J has no part in it.
        """
        self._jobs[folder] = _Job(folder=folder, marks=marks, adopted=True, leader=leader)

    def cancel(self, folder: Path, now: float) -> None:
        """End a job: TERM to all its processes now, KILL to those that are left after the grace."""
        self.cancel_all({folder}, now)

    def cancel_all(self, folders: set[Path], now: float) -> None:
        """`cancel` for several jobs, at the price of one look at the processes."""
        running = processes.running(MARK)
        for folder in folders & self._jobs.keys():
            job = self._jobs[folder]
            if job.kill_at is None:
                job.kill_at = now + self.grace_s
                job.ask_to_end(running)

    def poll(self, now: float) -> list[Ended]:
        """The jobs that have ended since the last call, once no process of theirs is left."""
        for job in self._jobs.values():
            job.ended = job.ended or _how_it_ended(job)
        orphans = [job for job in self._jobs.values() if job.ended is None and not _leads(job)]
        if orphans:
            running = processes.running(MARK)
            for job in orphans:
                job.ended = None if job.members(running) else _how_it_ended(job) or _unseen(job)
        # What a simulation leaves running would go on beside its next attempt.
        due = [job for job in self._jobs.values() if job.ended or (job.kill_at is not None and now >= job.kill_at)]
        asked = [job for job in self._jobs.values() if job.kill_at is not None and job not in due]
        running = processes.running(MARK) if due or asked else []
        for job in asked:
            job.ask_to_end(running)
        ended = [job.ended for job in due if _kill(job, running) and job.ended is not None]
        for one in ended:
            del self._jobs[one.folder]
        return ended


def _exists(spec: JobSpec) -> bool:
    program = spec.command[0]
    place = str(spec.folder / program) if "/" in program else program
    return shutil.which(place, path=spec.environment.get("PATH", os.defpath)) is not None


def _kill(job: _Job, running: list[Process]) -> bool:
    """KILL all processes of the job; True when none was left."""
    left = job.members(running)
    job.note_shared_memory(left)
    processes.send(left, signal.SIGKILL)
    if not left:
        shared_memory.remove(job.shared)
    return not left


def _leads(job: _Job) -> bool:
    return not job.adopted or (job.leader is not None and job.leader.alive)


def _how_it_ended(job: _Job) -> Ended | None:
    # The leader first: it writes how the job ended before it goes.
    gone = job.leader is not None and not job.leader.alive
    code = exit_code_of(job.folder / EXIT_FILE)
    if code is not None:
        return Ended(folder=job.folder, exit_code=code, reason=describe(code))
    if job.adopted or not gone:
        return None
    return Ended(folder=job.folder, exit_code=None, reason="was killed from outside")


def _unseen(job: _Job) -> Ended:
    return Ended(
        folder=job.folder,
        exit_code=None,
        reason="ended while no launcher watched it, without a word",
        unseen=job.kill_at is None,
    )


class _Session(psij.Launcher):
    """Starts a command in a session of its own, without PSI/J's launch script.

    The script needs one more process and fails on blanks in paths; a kill of it ends PSI/J's reaper thread.
    """

    def get_launch_command(self, job: psij.Job, log_file: str | None = None) -> list[str]:
        spec = job.spec
        assert spec is not None
        return ["setsid", "/bin/sh", "-c", SHELL, str(spec.directory), str(spec.executable), *(spec.arguments or ())]

    def is_launcher_failure(self, output: str) -> bool:
        return False

    def get_launcher_failure_message(self, output: str) -> str:
        return output


class _Executor(LocalJobExecutor):
    """PSI/J's local executor with our way of starting, that closes the pipes it opens."""

    def _get_launcher(self, name: str, version_constraint: str | None = None) -> psij.Launcher:
        return _Session(config=self.config)

    def _process_done(self, p: Any) -> None:
        p.process.stdout.close()
        super()._process_done(p)
