"""A backend for batch schedulers: each job is a job of one, which is asked by its own commands.

A job is known by its name, which no other has and which is written down before it is submitted: whether a submission
that was interrupted has come through is seen in the queue, and none is submitted twice.

Why: docs/decisions/0050-slurm-commands.md
Why: docs/decisions/0051-job-is-its-name.md
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.launcher.backends import job_script
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    LOG_FILE,
    NAME_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    Outage,
    SavedJob,
    SubmitError,
    describe,
    exit_code_of,
    stderr_of,
)
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    JobKind,
    NotSubmitted,
    QueueEntry,
    SubmitRefusal,
)
from stream_server.storage.disk import read_text

ASK_S = 5.0
MAX_ASK_S = 60.0
# A queue that takes long to tell is asked less often.
SHARE_OF_TIME = 0.1
# A job that was perhaps submitted, or known before, and is missing in all answers for so long, is not there.
MISSING_S = 60.0
RETRY_S = 30.0
CANCEL_AGAIN_S = 60.0
UNSUBMITTED = "was not submitted before its launcher was killed"
FORGOTTEN = "is not known to the scheduler any more, and left no exit code"

log = logging.getLogger(__name__)


class _Phase(StrEnum):
    """The phase of a job. `DOUBTFUL`: the scheduler may know it, or not."""

    WAITING = "waiting"
    DOUBTFUL = "doubtful"
    SUBMITTED = "submitted"
    ENDED = "ended"


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    """A job, under the lock of its backend.

    `submission` is what is submitted; a job that another launcher has submitted has none. `missing_since` is the begin
    of the first of the answers in a row in which it was missing.
    """

    name: str
    folder: Path
    submission: BatchJob | None = None
    phase: _Phase = _Phase.WAITING
    id: str = ""
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.QUEUED))
    is_cancelled: bool = False
    cancel_at: float = math.inf
    missing_since: float = math.inf
    touched: float = 0.0

    @property
    def is_pending(self) -> bool:
        return self.phase is _Phase.SUBMITTED and self.status.state is JobState.QUEUED

    def end(self, reason: str = "", *, excuse: str = "") -> None:
        self.phase = _Phase.ENDED
        self.status = JobStatus(state=JobState.ENDED, reason=reason, excuse=excuse)

    @property
    def seen(self) -> JobStatus:
        """Its status as the launcher is to see it."""
        if self.is_cancelled and self.phase is not _Phase.ENDED:
            return JobStatus(state=JobState.ENDING)
        return self.status


class BatchBackend(Backend):
    """Jobs of a batch scheduler; see `Backend`. A handle is the name of a job.

    The main thread says what is wanted; the thread `scheduler` asks it, one question at a time, and notes the answers.
    `outage` tells when there are none, whatever the scheduler raised instead: what it uses, such as a directory of
    users, may be away as well.

    Args:
        kind: The jobs; `max_queued` is the bound of the queue.
        scheduler: The scheduler, for the jobs of this study.
        ask_s: Time between two looks at the queue. The thread waits longer when it is slow or away.
        missing_s: How long a job may be missing in the answers until it is not there.
        retry_s: Time until a submission is tried again that met a limit of the site, unless a job ends before.
    """

    query_interval_s = 0.2

    def __init__(
        self,
        kind: JobKind,
        scheduler: CommandScheduler,
        *,
        ask_s: float = ASK_S,
        missing_s: float = MISSING_S,
        retry_s: float = RETRY_S,
    ) -> None:
        # A backend of the user's may hold this one, of which the launcher knows nothing.
        self.outage = Outage()
        self.scheduler = scheduler
        self.kind = kind
        self.ask_s = ask_s
        self.missing_s = missing_s
        self.retry_s = retry_s
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ask_at = 0.0
        self._submit_at = 0.0
        self._room_at = 0.0
        self._is_away = False
        jobs = "jobs" if kind.section == "simulation.job" else "the job of the server"
        self._not_listed = f"{scheduler.title} does not list {jobs}"
        self._not_cancelled = f"{scheduler.title} does not cancel {jobs}"

    def check(self) -> None:
        """See whether the scheduler would take the jobs.

        Raises:
            ConfigError: it would not, and why.
        """
        title = self.scheduler.title
        try:
            self.scheduler.check(self.kind.ranks)
        except NotSubmitted as error:
            if error.refusal is SubmitRefusal.WRONG:
                section = self.kind.section
                raise ConfigError(f"{section}: {title} would not take the jobs: {self._told(error)}") from error
            log.warning("whether %s would take the jobs is not known: %s", title, error)

    def submit(self, spec: JobSpec) -> str:
        """Write the job's scripts; the thread submits it.

        Raises:
            SubmitError: the scripts cannot be written.
        """
        name = job_script.job_name(self.kind.study, spec.folder, secrets.token_hex(6))
        try:
            script = job_script.write_scripts(spec, self.kind, self.scheduler.variables)
        except OSError as error:
            raise SubmitError(f"could not be queued: {error}") from error
        job = BatchJob(name=name, folder=spec.folder, ranks=spec.ranks, script=script)
        with self._changed:
            self._jobs[name] = _Job(name=name, folder=spec.folder, submission=job)
        self._wake()
        return name

    def cancel(self, handles: Collection[str]) -> None:
        """Begin to end these jobs; one that was not submitted yet has ended."""
        with self._changed:
            for handle in handles:
                job = self._jobs.get(handle)
                if job is None or job.is_cancelled or job.phase is _Phase.ENDED:
                    continue
                job.is_cancelled, job.cancel_at = True, 0.0
                if job.phase is _Phase.WAITING:
                    job.end("was cancelled before it was submitted")
        self._wake()

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Tell what the scheduler said last."""
        self._wake()
        with self._changed:
            found = {handle: job.seen for handle in handles if (job := self._jobs.get(handle)) is not None}
            for handle, status in found.items():
                if status.state is JobState.ENDED:
                    del self._jobs[handle]
        return found

    def reattach(self, job: SavedJob) -> str:
        """Look for a job in the queue, by the name that was written down before it was submitted."""
        try:
            name = read_text(job.folder / NAME_FILE)
        except FileNotFoundError:
            name = ""
        taken = _Job(name=name or job.handle or f"unsubmitted-{job.folder}", folder=job.folder)
        taken.phase, taken.status = _Phase.DOUBTFUL, JobStatus(state=JobState.UNKNOWN)
        if not name:
            taken.end(UNSUBMITTED, excuse=UNSUBMITTED)
        with self._changed:
            self._jobs[taken.name] = taken
        return taken.name

    def close(self) -> None:
        """Cancel what has not ended, at once."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        names = {job.name for job in self._jobs.values() if job.phase in (_Phase.DOUBTFUL, _Phase.SUBMITTED)}
        if not names:
            return
        try:
            entries = (entry for entry in self.scheduler.queue() if entry.name in names)
            ids = [entry.id for entry in entries if entry.status.state is not JobState.ENDED]
            if ids:
                self.scheduler.cancel(ids, at_once=True)
        except Exception as error:
            log.error(
                "jobs could not be cancelled, look into the queue of %s: %s", self.scheduler.title, stderr_of(error)
            )

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._closing and self._jobs:
                self._thread = threading.Thread(target=self._run, name="scheduler")
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do. Thread `scheduler`, as all that follows."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                jobs = [job for job in self._jobs.values() if job.phase is not _Phase.ENDED]
                due = [job for job in jobs if job.id and job.cancel_at <= now]
                if due:
                    return lambda: self._cancel(due)
                known = [job for job in jobs if job.phase is not _Phase.WAITING]
                if known and now >= self._ask_at:
                    return self._ask
                waiting = next((job for job in jobs if job.phase is _Phase.WAITING), None)
                has_room = not self._is_away and sum(job.is_pending for job in jobs) < self.kind.max_queued
                submit_at = max(self._submit_at, self._room_at)
                if waiting is not None and has_room and now >= submit_at:
                    return lambda: self._submit(waiting)
                times = [self._ask_at] if known else []
                times += [submit_at] if waiting is not None and has_room else []
                times += [job.cancel_at for job in jobs if job.id]
                wait_s = min(times, default=math.inf) - now
                self._changed.wait(None if wait_s == math.inf else max(0.0, wait_s))
        return None

    def _submit(self, job: _Job) -> None:
        try:
            job_script.write_new(job.folder / NAME_FILE, job.name)
        except FileExistsError:
            # Tried before.
            pass
        except OSError as error:
            with self._changed:
                job.end(f"could not be queued: {error}")
            return
        with self._changed:
            if job.phase is not _Phase.WAITING:
                return
            job.phase, job.missing_since = _Phase.DOUBTFUL, math.inf
        assert job.submission is not None
        try:
            number = self.scheduler.submit(job.submission)
        except NotSubmitted as error:
            self._refused(job, error)
            return
        except Exception as error:
            log.info("%s was perhaps not submitted", job.name, exc_info=error)
            self._refused(job, NotSubmitted(SubmitRefusal.AWAY, stderr_of(error)))
            return
        with self._changed:
            self._back(_Phase.SUBMITTED, job, JobStatus(state=JobState.QUEUED))
            job.id = number
        log.info("%s is job %s of %s", job.name, number, self.scheduler.title)

    def _back(self, phase: _Phase, job: _Job, status: JobStatus) -> None:
        job.phase, job.status, job.touched = phase, status, time.monotonic()

    def _refused(self, job: _Job, error: NotSubmitted) -> None:
        waits = JobStatus(state=JobState.QUEUED, reason=str(error))
        now = time.monotonic()
        with self._changed:
            if error.refusal is SubmitRefusal.WRONG:
                job.end(f"could not be submitted: {self._told(error)}")
            elif error.refusal is SubmitRefusal.FULL:
                self._back(_Phase.WAITING, job, waits)
                self._room_at = now + self.retry_s
                if job.is_cancelled:
                    job.end("was cancelled before it was submitted")
            else:
                # It may be in the queue: the next answers tell. Until then no other is tried.
                self._back(_Phase.DOUBTFUL, job, waits)
                self._submit_at, self._is_away = now + self.retry_s, True

    def _cancel(self, jobs: Sequence[_Job]) -> None:
        try:
            self.scheduler.cancel({job.id for job in jobs})
            self.outage.answered(self._not_cancelled)
            again_s = CANCEL_AGAIN_S
        except Exception as error:
            self.outage.unanswered(self._not_cancelled, error)
            again_s = self.ask_s
        with self._changed:
            for job in jobs:
                job.cancel_at = time.monotonic() + again_s
            self._ask_at = min(self._ask_at, time.monotonic() + min(1.0, self.ask_s))

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            entries = self.scheduler.queue()
        except Exception as error:
            self.outage.unanswered(self._not_listed, error)
            with self._changed:
                pause_s = 2 * max(self.ask_s, time.monotonic() - began)
                self._ask_at = time.monotonic() + min(MAX_ASK_S, pause_s)
            return
        self.outage.answered(self._not_listed)
        took_s = time.monotonic() - began
        with self._changed:
            self._is_away = False
            self._ask_at = time.monotonic() + min(MAX_ASK_S, max(self.ask_s, took_s / SHARE_OF_TIME))
            self._take({entry.name: entry for entry in entries}, began)
            are_cancelled = all(job.phase is _Phase.ENDED for job in self._jobs.values() if job.is_cancelled)
        if are_cancelled:
            self.outage.answered(self._not_cancelled)

    def _told(self, error: NotSubmitted) -> str:
        message = str(error)
        told = self.scheduler.hint(message)
        return f"{message}. {self.kind.worded(told)}" if told else message

    def _take(self, entries: Mapping[str, QueueEntry], began: float) -> None:
        for job in self._jobs.values():
            # What was submitted while the queue was read may be missing in the answer.
            if job.phase not in (_Phase.DOUBTFUL, _Phase.SUBMITTED) or job.touched > began:
                continue
            entry = entries.get(job.name)
            if entry is None:
                self._missing(job, began)
                continue
            job.missing_since = math.inf
            job.id, job.phase, job.status = entry.id, _Phase.SUBMITTED, entry.status
            if job.status.state is JobState.ENDED:
                explained = _explained(job, entry)
                job.phase, job.status = _Phase.ENDED, replace(explained, reason=self.kind.worded(explained.reason))
                # It has made room, if a limit of the site held others back.
                self._room_at = 0.0

    def _missing(self, job: _Job, began: float) -> None:
        if (job.folder / EXIT_FILE).exists():
            job.end()
            return
        job.missing_since = min(job.missing_since, began)
        if began < job.missing_since + self.missing_s:
            return
        if job.phase is _Phase.SUBMITTED:
            job.end(FORGOTTEN)
        elif job.is_cancelled:
            job.end("was cancelled before it was submitted")
        elif job.submission is not None:
            job.phase, job.status = _Phase.WAITING, JobStatus(state=JobState.QUEUED)
        else:
            job.end(FORGOTTEN, excuse=FORGOTTEN)


def _explained(job: _Job, entry: QueueEntry) -> JobStatus:
    """How it ended; one that was cancelled by us, or that the command itself has ended, as its exit code says."""
    status = entry.status
    if entry.was_cancelled and not status.excuse:
        by_whom = "" if job.is_cancelled else " from outside"
        return JobStatus(state=JobState.ENDED, reason=f"was cancelled{by_whom}")
    if status.reason or status.exit_code is not None:
        return status
    code = exit_code_of(job.folder / EXIT_FILE)
    if code is not None:
        return JobStatus(state=JobState.ENDED, exit_code=code, reason=describe(code))
    if job.is_cancelled:
        return JobStatus(state=JobState.ENDED, reason="was cancelled")
    if not (job.folder / LOG_FILE).exists():
        return JobStatus(
            state=JobState.ENDED, reason=f"ended before its command began: the nodes must see {job.folder}"
        )
    return status
