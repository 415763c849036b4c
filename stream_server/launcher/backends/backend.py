"""Backends: what the launcher asks of whatever runs its jobs, such as this machine or a batch scheduler.

Why: docs/decisions/0048-submission-without-an-answer.md
"""

import contextlib
import logging
import math
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stream_server.storage.disk import UnusableFile, read_file

FIRST_S = 5.0
EXPECTED = (OSError, subprocess.SubprocessError)

log = logging.getLogger(__name__)

IDENTITY = ("STREAM_CONNECTION", "STREAM_SIMULATION_ID", "STREAM_ATTEMPT", "MELISSA_SIMU_ID")
LOG_FILE = "output.log"
# The name under which a scheduler knows the job.
NAME_FILE = "job.name"
EXIT_FILE = "job.exit"
# Empty files: their times tell when a worker came to a simulation after its first one, and when each was finished.
WORKER_START_FILE = "worker.start"
WORKER_END_FILE = "worker.end"
MOST_DIGITS = 3
MAX_EXIT_BYTES = 64

# $0 is the job's folder, "$@" its command line. The shell outlives TERM and INT to write how its child ended.
SHELL = (
    f'exec </dev/null >>"$0/{LOG_FILE}" 2>&1; trap : HUP INT TERM; '
    f'"$@"; code=$?; echo $code >"$0/{EXIT_FILE}"; exit $code'
)


class Outage:
    """Questions that have no answer now and are asked again. Any thread.

    Whoever asks names the question; an outage lasts until each of them has been answered. `news` tells once of one that
    has lasted for `FIRST_S`, and of its end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unanswered: dict[str, str] = {}
        self._since = 0.0
        self._tell_at = math.inf
        self._was_told = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def within(self, what: str) -> Iterator[None]:
        """Ask a question in the block; `what` says what an OSError or SubprocessError of it means."""
        try:
            yield
        except EXPECTED as error:
            self.unanswered(what, error)
        else:
            self.answered(what)

    def unanswered(self, what: str, error: Exception) -> None:
        """A question has no answer."""
        with self._lock:
            if not self._unanswered:
                self._since = self._clock()
                self._tell_at = self._since + FIRST_S
            is_new = what not in self._unanswered
            self._unanswered[what] = stderr_of(error)
        if is_new:
            unforeseen = None if isinstance(error, EXPECTED) else error
            log.info("%s: %s", what, stderr_of(error), exc_info=unforeseen)

    def answered(self, what: str) -> None:
        """A question has an answer, or need not be asked any more."""
        with self._lock:
            self._unanswered.pop(what, None)

    def repeat(self) -> None:
        """Tell of an outage that was told before once more: somebody has not heard of it."""
        if self._was_told:
            self._tell_at = -math.inf

    def news(self) -> str:
        """The news to tell now; "" if there are none."""
        with self._lock:
            now = self._clock()
            lasted_s = now - self._since
            if not self._unanswered:
                was_told, self._was_told = self._was_told, False
                return f"there are answers again, after {lasted_s:.0f} s" if was_told else ""
            if now < self._tell_at:
                return ""
            self._was_told, self._tell_at = True, math.inf
            (what, error), *others = self._unanswered.items()
        more = f", and {len(others)} more" if others else ""
        return f"no answer for {lasted_s:.0f} s: {what} ({error}){more}; what runs goes on"


def stderr_of(error: Exception) -> str:
    """The words of a command that failed, or of any other error, with its type where nobody expects it."""
    said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) and error.stderr else ""
    return said or (str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}")


def shell_of(folder: Path) -> tuple[str, ...]:
    """The beginning of the command line of the shell of a job."""
    return ("/bin/sh", "-c", SHELL, str(folder))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """A job to run.

    Attributes:
        command: Program and arguments, never to be read by a shell.
        environment: All that its processes get; nothing is inherited from the launcher.
        folder: Absolute path of the job's own folder, which exists. No other job has it, now or later.
        marks: Each process of the job has one of these as its `STREAM_CONNECTION`; no process of another job has.
        ranks: Number of MPI processes that the command starts, 1 for a program that is none.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    marks: frozenset[str]
    ranks: int = 1

    @property
    def shell_command(self) -> tuple[str, ...]:
        """The command line that a backend runs: `command`, with output in output.log and exit code in job.exit."""
        return (*shell_of(self.folder), *self.command)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedJob:
    """A job that an earlier launcher submitted; `folder` and `marks` are as in its `JobSpec`.

    `handle` is what `submit` returned, None if that launcher was killed before it could save it.
    """

    folder: Path
    marks: frozenset[str]
    handle: str | None


class JobState(StrEnum):
    """State of a job. `ENDING`: its command has ended or was told to end, but processes of it remain."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """Answer to a query.

    Of a job that has ended: `exit_code` is 128 + n after signal n, None if the backend does not know it (the launcher
    then reads job.exit), and `reason` says how it ended in words that follow the job's name, "" for the usual ones. An
    `excuse` says why that does not count against the simulation, such as a node that was lost: it is run again.
    `is_out_of_time`: it reached its time limit, which is the fault of none but the first simulation of a worker.
    Of a job that is queued, `reason` says why it waits, in the scheduler's words.
    """

    state: JobState
    exit_code: int | None = None
    reason: str = ""
    excuse: str = ""
    is_out_of_time: bool = False


class SubmitError(Exception):
    """A job was refused, or `reattach` finds none: it does not exist.

    `exit_code` is what a shell would give, if any.
    """

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Backend(ABC):
    """Runs jobs. docs/guide/backends.md explains how to write one.

    The launcher calls all methods from its main thread, one at a time, and does nothing else meanwhile: each should
    return within a second. A backend whose scheduler is slower asks it in a thread of its own, and answers `query` from
    what it heard last.

    `submit`, `query`, `cancel` and `reattach` may raise OSError or subprocess.SubprocessError: nothing is known at
    present. The launcher tells of that and calls again later; no job is taken for ended. Any other exception, or a
    return value of another type, ends the study.

    Attributes:
        query_interval_s: Shortest time between two calls of `query`, in seconds; 0 where asking costs nothing.
        outage: Set before the first call; for what the backend asks in a thread of its own. The launcher tells of it.
    """

    query_interval_s: float
    outage: Outage

    def check(self) -> None:  # noqa: B027
        """Refuse the jobs of this study, if they would be refused; by default there is nothing to see.

        Raises:
            ConfigError: they would be, and why.
        """

    @abstractmethod
    def submit(self, spec: JobSpec) -> str:
        """Start `spec.shell_command` in `spec.folder`, or queue it; return its handle.

        A handle is one line of text that names this job for ever, also to a launcher that is started later.

        Raises:
            SubmitError: the job was refused; that is a failure of the simulation.
            OSError, subprocess.SubprocessError: the scheduler cannot be reached, or whether it has the job is not
                known; that is no failure. The launcher looks for the job with `reattach`, without a handle, and starts
                a new attempt only when there is none. For a while it submits nothing else.
        """

    @abstractmethod
    def cancel(self, handles: Collection[str]) -> None:
        """Begin to end these jobs with all their processes: TERM first, KILL after a few seconds. Do not wait.

        Jobs that have ended, or were cancelled before, are passed over.
        """

    @abstractmethod
    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Return the state of each of these jobs. One that is missing in the answer is UNKNOWN.

        UNKNOWN never means that the job failed: a handle of which nothing is known, a scheduler that forgets jobs. A
        job is ENDED only when no process of it is left; the launcher does not ask for it again.
        """

    @abstractmethod
    def reattach(self, job: SavedJob) -> str:
        """Take over a job of an earlier launcher; return the handle by which it is asked for from now on.

        The job may have ended long ago: `query` tells.

        Raises:
            SubmitError: there is no such job. Without a saved handle it may never have been submitted.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill every job that has not ended, at once. The last call."""


def exit_code_in(line: bytes) -> int | None:
    """Return the exit code that a shell wrote, None if this is none."""
    word = line.strip()
    return int(word) if word.isdigit() and len(word) <= MOST_DIGITS else None


def exit_code_of(file: Path) -> int | None:
    """Return the exit code that a shell wrote into a file, None as long as its line is not complete.

    Raises:
        OSError: the file may be there, but cannot be read.
    """
    try:
        line = read_file(file, max_bytes=MAX_EXIT_BYTES)
    except (FileNotFoundError, NotADirectoryError, UnusableFile):
        return None
    return exit_code_in(line) if line.endswith(b"\n") else None


def describe(code: int) -> str:
    """Say how a process ended, given the exit code that a shell gives."""
    with contextlib.suppress(ValueError):
        if code > 128:
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"
