"""The backend `slurm`: each job is a job of Slurm.

A job is known by its name, which no other has and which is written down before it is submitted: whether a submission
that was interrupted has come through is seen in the queue, and none is submitted twice.
"""

import logging
import math
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from stream_server.config import StudyConfig, walltime_s
from stream_server.errors import ConfigError
from stream_server.launcher.backends import slurm_commands, slurm_job
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    LOG_FILE,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    SubmitError,
    describe,
    exit_code_of,
)
from stream_server.launcher.backends.slurm_commands import NotSubmitted, QueueEntry, SubmitRefusal
from stream_server.storage.disk import read_text

NAME_FILE = "job.name"
COMMANDS = ("sbatch", "scancel", "squeue")
ASK_S = 5.0
MAX_ASK_S = 60.0
# A queue that takes long to tell is asked less often.
SHARE_OF_TIME = 0.1
# A job that was perhaps submitted, or that Slurm has known, and is missing in all answers for so long, is not there.
MISSING_S = 60.0
RETRY_S = 30.0
CANCEL_AGAIN_S = 60.0
UNSUBMITTED = "was not submitted before its launcher was killed"
FORGOTTEN = "is not known to Slurm any more, and left no exit code"

log = logging.getLogger(__name__)


class _Phase(StrEnum):
    """How far a job has come. `DOUBTFUL`: Slurm may know it, or not."""

    WAITING = "waiting"
    DOUBTFUL = "doubtful"
    SUBMITTED = "submitted"
    ENDED = "ended"


@dataclass(kw_only=True, slots=True, eq=False)
class _SlurmJob:
    """A job, under the lock of its backend.

    `options` and `script` are those of sbatch; a job that another launcher submitted has none. `missing_since` is the
    begin of the first of the answers in a row in which it was missing.
    """

    name: str
    folder: Path
    options: Sequence[str] = ()
    script: str = ""
    phase: _Phase = _Phase.WAITING
    number: str = ""
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


class SlurmBackend:
    """Jobs of Slurm; see `Backend`. A handle is the name of a job.

    The main thread says what is wanted; the thread `slurm` runs the commands, one at a time, and notes the answers.

    Args:
        config: The study; `simulation.job` has the resources, `launcher.max_queued` the bound of the queue.
        ask_s: Time between two looks at the queue. The thread waits longer when Slurm is slow or away.
        missing_s: How long a job may be missing in the answers until it is not there.
        retry_s: Time until a submission is tried again that met a limit of the site.

    Raises:
        ConfigError: the commands of Slurm are not here.
    """

    query_interval_s = 0.2

    def __init__(
        self, config: StudyConfig, *, ask_s: float = ASK_S, missing_s: float = MISSING_S, retry_s: float = RETRY_S
    ) -> None:
        slurm_commands.require(*COMMANDS)
        self.study = config.study.name
        self.resources = config.simulation.job
        self.ranks = config.simulation.ranks * config.simulation.per_job
        self.max_queued = math.inf if config.launcher.max_queued is None else config.launcher.max_queued
        self.ask_s = ask_s
        self.missing_s = missing_s
        self.retry_s = retry_s
        self._jobs: dict[str, _SlurmJob] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ask_at = 0.0
        self._submit_at = 0.0
        self._problem = ""

    def check(self) -> None:
        """See whether Slurm would take the jobs.

        Raises:
            ConfigError: it would not, and why.
        """
        resources = self.resources
        limit = slurm_commands.time_limit_s(resources.partition)
        if resources.walltime is not None and limit is not None and walltime_s(resources.walltime) > limit:
            raise ConfigError(
                f"simulation.job.walltime: {resources.walltime} is longer than the time limit of the partition, "
                f"{slurm_commands.in_words(limit)}: such a job would wait for ever"
            )
        try:
            slurm_commands.check(slurm_job.job_options(resources, self.ranks), "#!/bin/sh\n")
        except NotSubmitted as error:
            if slurm_commands.NO_CLUSTER in str(error):
                raise ConfigError(
                    f'launcher.backend: "slurm", but this machine belongs to no cluster: {error}. Start the study on a '
                    "login node, or let SLURM_CONF name the configuration of the cluster"
                ) from error
            if error.refusal is not SubmitRefusal.WRONG:
                log.warning("launcher.backend: whether Slurm would take the jobs is not known: %s", error)
                return
            raise ConfigError(f"simulation.job: Slurm would not take the jobs: {_told(error)}") from error

    def submit(self, spec: JobSpec) -> str:
        """Write the job's scripts; the thread submits it.

        Raises:
            SubmitError: the scripts cannot be written.
        """
        name = slurm_job.job_name(self.study, spec.folder, secrets.token_hex(6))
        text = slurm_job.second_script(spec, self.resources.setup, self.resources.environment)
        try:
            _write(spec.folder / slurm_job.JOB_FILE, text)
        except OSError as error:
            raise SubmitError(f"could not be queued: {error}") from error
        options = slurm_job.job_options(self.resources, spec.ranks) + slurm_job.placing_options(name, spec.folder)
        script = slurm_job.first_script(spec.folder, has_setup=bool(self.resources.setup))
        with self._changed:
            self._jobs[name] = _SlurmJob(name=name, folder=spec.folder, options=options, script=script)
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
        """Tell what Slurm said last."""
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
        taken = _SlurmJob(name=name or job.handle or f"unsubmitted-{job.folder}", folder=job.folder)
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
            entries = (entry for entry in slurm_commands.queue() if entry.name in names)
            numbers = [entry.id for entry in entries if entry.status.state is not JobState.ENDED]
            if numbers:
                slurm_commands.cancel(numbers, "--full", "--signal=KILL")
                slurm_commands.cancel(numbers)
        except (OSError, subprocess.SubprocessError) as error:
            log.error("jobs could not be cancelled, look at `squeue --me`: %s", _words(error))

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._closing and self._jobs:
                self._thread = threading.Thread(target=self._run, name="slurm")
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do. Thread `slurm`, as all that follows."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                jobs = [job for job in self._jobs.values() if job.phase is not _Phase.ENDED]
                due = [job for job in jobs if job.number and job.cancel_at <= now]
                if due:
                    return lambda: self._cancel(due)
                known = [job for job in jobs if job.phase is not _Phase.WAITING]
                if known and now >= self._ask_at:
                    return self._ask
                waiting = next((job for job in jobs if job.phase is _Phase.WAITING), None)
                has_room = sum(job.is_pending for job in jobs) < self.max_queued
                if waiting is not None and has_room and now >= self._submit_at:
                    return lambda: self._submit(waiting)
                times = [self._ask_at] if known else []
                times += [self._submit_at] if waiting is not None and has_room else []
                times += [job.cancel_at for job in jobs if job.number]
                wait_s = min(times, default=math.inf) - now
                self._changed.wait(None if wait_s == math.inf else max(0.0, wait_s))
        return None

    def _submit(self, job: _SlurmJob) -> None:
        try:
            _write(job.folder / NAME_FILE, job.name)
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
        try:
            number = slurm_commands.submit(job.options, job.script)
        except NotSubmitted as error:
            self._refused(job, error)
            return
        with self._changed:
            self._back(_Phase.SUBMITTED, job, JobStatus(state=JobState.QUEUED))
            job.number = number
        log.info("%s is job %s of Slurm", job.name, number)

    def _back(self, phase: _Phase, job: _SlurmJob, status: JobStatus) -> None:
        job.phase, job.status, job.touched = phase, status, time.monotonic()

    def _refused(self, job: _SlurmJob, error: NotSubmitted) -> None:
        waits = JobStatus(state=JobState.QUEUED, reason=str(error))
        now = time.monotonic()
        with self._changed:
            if error.refusal is SubmitRefusal.WRONG:
                job.end(f"could not be submitted: {_told(error)}")
            elif error.refusal is SubmitRefusal.FULL:
                self._back(_Phase.WAITING, job, waits)
                self._submit_at = now + self.retry_s
                if job.is_cancelled:
                    job.end("was cancelled before it was submitted")
            else:
                # It may be in the queue: the next answers tell.
                self._back(_Phase.DOUBTFUL, job, waits)
                self._submit_at = now + self.retry_s
        if error.refusal is not SubmitRefusal.WRONG:
            log.warning("%s waits to be submitted: %s", job.name, error)

    def _cancel(self, jobs: Sequence[_SlurmJob]) -> None:
        try:
            slurm_commands.cancel({job.number for job in jobs})
            again_s = CANCEL_AGAIN_S
        except (OSError, subprocess.SubprocessError) as error:
            self._away("cancel jobs", error)
            again_s = self.ask_s
        with self._changed:
            for job in jobs:
                job.cancel_at = time.monotonic() + again_s
            self._ask_at = min(self._ask_at, time.monotonic() + min(1.0, self.ask_s))

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            entries = slurm_commands.queue()
        except (OSError, subprocess.SubprocessError) as error:
            self._away("list jobs", error)
            with self._changed:
                pause_s = 2 * max(self.ask_s, time.monotonic() - began)
                self._ask_at = time.monotonic() + min(MAX_ASK_S, pause_s)
            return
        if self._problem:
            self._problem = ""
            log.info("Slurm answers again")
        took_s = time.monotonic() - began
        with self._changed:
            self._ask_at = time.monotonic() + min(MAX_ASK_S, max(self.ask_s, took_s / SHARE_OF_TIME))
            self._take({entry.name: entry for entry in entries}, began)

    def _away(self, what: str, error: Exception) -> None:
        """Say once that Slurm does not answer; jobs go on meanwhile."""
        if not self._problem:
            log.warning("Slurm does not %s, and is asked again; what runs goes on: %s", what, _words(error))
        self._problem = _words(error)

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
            job.number, job.phase, job.status = entry.id, _Phase.SUBMITTED, entry.status
            if job.status.state is JobState.ENDED:
                job.phase, job.status = _Phase.ENDED, _explained(job, entry)

    def _missing(self, job: _SlurmJob, began: float) -> None:
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
        elif job.options:
            job.phase, job.status = _Phase.WAITING, JobStatus(state=JobState.QUEUED)
        else:
            job.end(FORGOTTEN, excuse=FORGOTTEN)


def _explained(job: _SlurmJob, entry: QueueEntry) -> JobStatus:
    """How it ended; one that was cancelled by us, or that the command itself has ended, as its exit code says."""
    status = entry.status
    if entry.state == "CANCELLED" and job.is_cancelled:
        return JobStatus(state=JobState.ENDED, reason="was cancelled")
    if entry.state != "FAILED":
        return status
    code = exit_code_of(job.folder / EXIT_FILE)
    if code is not None:
        return JobStatus(state=JobState.ENDED, exit_code=code, reason=describe(code))
    if not (job.folder / LOG_FILE).exists():
        return JobStatus(
            state=JobState.ENDED, reason=f"ended before its command began: the nodes must see {job.folder}"
        )
    return status


def _told(error: NotSubmitted) -> str:
    message = str(error)
    told = slurm_commands.hint(message)
    return f"{message}. {told}" if told else message


def _words(error: Exception) -> str:
    said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) and error.stderr else ""
    return said or str(error)


def _write(file: Path, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        # Variables of the environment, and paths, may be no text: their bytes stay what they are.
        stream.write(os.fsencode(text))
