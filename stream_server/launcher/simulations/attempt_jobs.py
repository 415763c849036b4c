"""The jobs of the attempts: which attempts share one, how each of them ended, and who brought a shared job down."""

import contextlib
import logging
import math
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    LOG_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    Outage,
    SavedJob,
    SubmitError,
    describe,
    exit_code_in,
    exit_code_of,
    stderr_of,
)
from stream_server.launcher.backends.mpirun import RANKS_FILE, Mpirun
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.records import AttemptEnded
from stream_server.launcher.schedule.shared_jobs import ENDED_WITH_JOB, excuse_of_failed
from stream_server.launcher.schedule.simulation import RESTARTED
from stream_server.launcher.simulations.attempt_folders import CONNECTION_FILE, AttemptFolders
from stream_server.launcher.simulations.last_words import explanation, last_mistake, python_of
from stream_server.machine.log_end import log_end, words_at_end
from stream_server.storage.disk import MAX_TEXT_BYTES, UnusableFile, read_file

Attempt = tuple[int, int]
ABORT = "Abort("
OUT_OF_TIME = "its worker had spent the time of its job on others"
# A cancelled job that the backend does not know for this long has ended.
FORGOTTEN_S = 60.0
SUBMIT_PAUSE_S = 30.0
NOT_SUBMITTED = "no job can be submitted"
UNANSWERED = "its submission was not answered"

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class _AttemptJob:
    """A job of some attempts, of `ranks` ranks each.

    `spec` is there until it is submitted. `saved` is what is known of one that another launcher has started, or whose
    submission was not answered: then it has no `handle` until the backend took it over, and an `excuse` if nobody saw
    its end. `unknown_since`: from when on it was UNKNOWN after a cancel. `waits_for` is why it is queued.
    """

    folder: Path
    attempts: tuple[Attempt, ...]
    ranks: int
    handle: str = ""
    spec: JobSpec | None = None
    saved: SavedJob | None = None
    excuse: str = ""
    is_cancelled: bool = False
    state: JobState = JobState.RUNNING
    waits_for: str = ""
    end: JobStatus | None = None
    unknown_since: float = math.inf


class AttemptJobs:
    """Starts, ends and watches the jobs of attempts, each of which is a simulation and a number. Main thread only.

    `mpirun` is None when each simulation is a program of its own. Jobs that `are_workers` compute their simulations one
    after another, in the program of the first. `outage` tells what the backend or the disk does not answer.
    """

    def __init__(
        self,
        backend: Backend,
        attempts: AttemptFolders,
        mpirun: Mpirun | None,
        outage: Outage,
        *,
        are_workers: bool = False,
    ) -> None:
        self.backend = backend
        self.attempts = attempts
        self.mpirun = mpirun
        self.are_workers = are_workers
        self.outage = outage
        self._jobs: dict[Path, _AttemptJob] = {}
        self._submit_at = -math.inf
        self._why_held_back = ""
        self._submitted: list[tuple[tuple[Attempt, ...], str]] = []

    @property
    def ranks(self) -> int:
        return self.mpirun.ranks if self.mpirun else 1

    @property
    def num_running(self) -> int:
        """Number of jobs whose end `poll` has not returned yet."""
        return len(self._jobs)

    @property
    def busy(self) -> bool:
        """Some job is on its way out."""
        return any(job.is_cancelled or job.end or job.state is JobState.ENDING for job in self._jobs.values())

    @property
    def queue(self) -> dict[Attempt, str]:
        """The attempts whose job is queued, and the scheduler's reason for it; "" where it gives none."""
        queued = (job for job in self._jobs.values() if job.state is JobState.QUEUED)
        return {attempt: job.waits_for for job in queued for attempt in job.attempts}

    @property
    def why_none_runs(self) -> str:
        """Why the jobs wait in the queue, in the scheduler's words, if all of them do and it says so; "" otherwise."""
        are_queued = all(job.state is JobState.QUEUED for job in self._jobs.values())
        return ", ".join(sorted({job.waits_for for job in self._jobs.values() if job.waits_for})) if are_queued else ""

    def submit(self, specs: Mapping[Attempt, JobSpec], now: float) -> None:
        """Start these in one job.

        A job that cannot be started has an end like any other, which the next `poll` tells. While the backend cannot
        take jobs, this one is queued.
        """
        programs = list(specs.values())[: 1 if self.are_workers else None]
        spec = self.mpirun.job(programs) if self.mpirun else programs[0]
        job = _AttemptJob(folder=spec.folder, attempts=tuple(specs), ranks=self.ranks, spec=spec)
        self._jobs[spec.folder] = job
        self._submit(job, now)

    def take_submitted(self) -> list[tuple[tuple[Attempt, ...], str]]:
        """Return attempts and handle of each job that was submitted since the last call."""
        submitted, self._submitted = self._submitted, []
        return submitted

    def adopt(self, history: History) -> None:
        """Watch the jobs of the last launcher; cancel the ones that it was about to end."""
        for job, begun in history.jobs.items():
            if not (left := history.in_job(job)):
                continue
            folder, attempts = Path(job), tuple(attempt.key for attempt in begun)
            marks = frozenset(str(self.attempts.folder(*attempt) / CONNECTION_FILE) for attempt in attempts)
            saved = SavedJob(folder=folder, marks=marks, handle=left[0].handle)
            ranks = 1 if left[0].starting is None else left[0].starting.ranks
            # Until the backend answers it may be queued: no clock runs.
            self._jobs[folder] = _AttemptJob(
                folder=folder,
                attempts=attempts,
                ranks=ranks,
                saved=saved,
                excuse=RESTARTED,
                state=JobState.QUEUED,
            )
        self._reattach()
        self.cancel([recorded.key for recorded in history.attempts.values() if recorded.attempt.is_cancelled])

    def keep_waiting(self) -> None:
        """Let what runs, or begins to, wait for the next server."""
        for job in self._jobs.values():
            for attempt in job.attempts:
                self.attempts.touch(*attempt)

    def cancel(self, attempts: Collection[Attempt]) -> None:
        """End their jobs."""
        jobs = [job for job in self._jobs.values() if not job.end and set(job.attempts) & set(attempts)]
        for job in jobs:
            job.is_cancelled = True
            if job.spec is not None:
                job.end = JobStatus(state=JobState.ENDED, reason="was cancelled before it was submitted")
        self._cancel(jobs)

    def poll(self, now: float) -> list[AttemptEnded]:
        """Return the attempts that have ended since the last call, once no process of their job is left."""
        self._reattach()
        for job in self._jobs.values():
            self._submit(job, now)
        if now >= self._submit_at:
            self.outage.answered(NOT_SUBMITTED)
        running = [job for job in self._jobs.values() if job.handle and not job.end]
        with self.outage.within("nothing is known of the jobs"):
            statuses = self.backend.query([job.handle for job in running]) if running else {}
            for job in running:
                self._take(job, statuses.get(job.handle, JobStatus(state=JobState.UNKNOWN)), now)
        # Cancel again what still runs.
        self._cancel([job for job in running if job.is_cancelled and job.state in (JobState.QUEUED, JobState.RUNNING)])
        ended = []
        for job in [job for job in self._jobs.values() if job.end]:
            with self.outage.within(_ranks_cannot_be_read(job.folder)):
                assert job.end is not None
                folders = {attempt: self.attempts.folder(*attempt) for attempt in job.attempts}
                log = job.folder / LOG_FILE
                ends_now = ends(folders, job.end, log=log, num_ranks=job.ranks, are_workers=self.are_workers)
                ended += [msgspec.structs.replace(end, reason=end.reason + self._explanation(end)) for end in ends_now]
                del self._jobs[job.folder]
        return ended

    def ranks_ended(self) -> Iterator[tuple[Attempt, str, bool]]:
        """Yield attempts with ended ranks in running shared jobs: how one failed, and whether all ended.

        Under MPICH a job goes on when a rank ends that has not called MPI_Init.
        """
        for job in () if self.are_workers else self._jobs.values():
            for attempt in job.attempts if len(job.attempts) > 1 else ():
                with self.outage.within(_ranks_cannot_be_read(job.folder)):
                    # An abort would have ended the job.
                    traces = Traces(codes=_codes(self.attempts.folder(*attempt)))
                    if traces.codes:
                        yield attempt, traces.at_fault, traces.all_ended(job.ranks)

    def mistake(self, end: AttemptEnded) -> str:
        """The words of the native client in its log about a mistake that the program passed over, "" if none."""
        return last_mistake(self._log_end(end))

    def _log_end(self, end: AttemptEnded) -> str:
        # A shared job writes into the log of its first attempt.
        log_path = Path(end.log)
        is_own = log_path.parent == self.attempts.folder(end.simulation, end.attempt)
        return words_at_end(log_path) if is_own else ""

    def _explanation(self, end: AttemptEnded) -> str:
        """The words of its log about what went wrong, "" if there are none."""
        if not end.exit_code:
            return ""
        return explanation(self._log_end(end), end.exit_code, end.reason, self._python)

    def _python(self) -> str:
        return python_of(self.attempts.command, self.attempts.environment, self.attempts.study_dir)

    def _submit(self, job: _AttemptJob, now: float) -> None:
        """Submit a job if that is still to be done and the backend takes jobs."""
        spec = job.spec
        if spec is None or job.end is not None:
            return
        if now < self._submit_at:
            job.state, job.waits_for = JobState.QUEUED, self._why_held_back
            return
        job.spec = None
        try:
            job.handle = self.backend.submit(spec)
        except SubmitError as error:
            with contextlib.suppress(OSError):
                (spec.folder / LOG_FILE).write_text(f"{error}\n")
            job.end = JobStatus(state=JobState.ENDED, exit_code=error.exit_code, reason=str(error))
        except (OSError, subprocess.SubprocessError) as error:
            # It may run. To submit it again could give two jobs the name and the folder of one attempt.
            log.warning("whether the job in %s was submitted is not known: %s", job.folder, stderr_of(error))
            self.outage.unanswered(NOT_SUBMITTED, error)
            self._submit_at, self._why_held_back = now + SUBMIT_PAUSE_S, f"{NOT_SUBMITTED}: {stderr_of(error)}"
            job.state, job.waits_for = JobState.QUEUED, self._why_held_back
            job.saved, job.excuse = SavedJob(folder=spec.folder, marks=spec.marks, handle=None), UNANSWERED
        else:
            self._submitted.append((job.attempts, job.handle))

    def _cancel(self, jobs: Sequence[_AttemptJob]) -> None:
        with self.outage.within("jobs cannot be cancelled yet"):
            if handles := [job.handle for job in jobs if job.handle]:
                self.backend.cancel(handles)

    def _reattach(self) -> None:
        for job in self._jobs.values():
            if job.saved is not None and not job.handle and not job.end:
                with self.outage.within(f"the job in {job.folder} cannot be taken over yet"):
                    try:
                        job.handle = self.backend.reattach(job.saved)
                    except SubmitError as error:
                        log.info("the job in %s is not there: %s", job.folder, error)
                        self._end(job, JobStatus(state=JobState.ENDED))

    def _take(self, job: _AttemptJob, status: JobStatus, now: float) -> None:
        """Note what the backend said of a job."""
        job.state = status.state
        waits_for = status.reason if status.state is JobState.QUEUED else ""
        if waits_for not in ("", job.waits_for):
            log.info("the job in %s waits: %s", job.folder, waits_for)
        job.waits_for = waits_for
        is_unknown = job.is_cancelled and status.state is JobState.UNKNOWN
        job.unknown_since = min(job.unknown_since, now) if is_unknown else math.inf
        if status.state is JobState.ENDED or now >= job.unknown_since + FORGOTTEN_S:
            self._end(job, status)

    def _end(self, job: _AttemptJob, status: JobStatus) -> None:
        """Note how a job ended, once its exit code can be read."""
        with self.outage.within(f"how the job in {job.folder} ended cannot be read yet"):
            code = exit_code_of(job.folder / EXIT_FILE) if status.exit_code is None else status.exit_code
            reason = status.reason or ("ended, and left no exit code" if code is None else describe(code))
            unseen = code is None and not job.is_cancelled
            excuse = status.excuse or (job.excuse if unseen else "")
            job.end = replace(status, exit_code=code, reason=reason, excuse=excuse)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """The traces of a simulation's ranks: exit codes of those that ended by themselves, and whether one aborted.

    MPICH ends a job of which a rank calls MPI_Abort before there is an exit code, but writes into the log.
    """

    codes: tuple[int, ...] = ()
    aborted: bool = False

    @classmethod
    def read(cls, folder: Path) -> Self:
        lines = log_end(folder / LOG_FILE).splitlines()
        return cls(codes=_codes(folder), aborted=any(line.startswith(ABORT) for line in lines))

    @property
    def at_fault(self) -> str:
        """The failure that brought the job down, "" if there is none here."""
        code = next((code for code in self.codes if code), 0)
        return f"a rank {describe(code)}" if code else "a rank called MPI_Abort" if self.aborted else ""

    def all_ended(self, num_ranks: int) -> bool:
        return len(self.codes) >= num_ranks

    def ended_well(self, num_ranks: int) -> bool:
        return self.all_ended(num_ranks) and not any(self.codes)


def ends(
    folders: Mapping[Attempt, Path], job: JobStatus, *, log: Path, num_ranks: int, are_workers: bool = False
) -> list[AttemptEnded]:
    """Ends of the attempts in these folders, which shared a job with this log or had one alone.

    If they `are_workers`, their program ended: which of them it was at, the schedule knows.
    """
    if len(folders) > 1 and not are_workers:
        traces = {attempt: Traces.read(folder) for attempt, folder in folders.items()}
        logs = {attempt: _log(folder / LOG_FILE, log) for attempt, folder in folders.items()}
        return judge(traces, logs, job, num_ranks)
    first = next(iter(folders))
    late = OUT_OF_TIME if job.is_out_of_time else ""
    return [
        _end(attempt, job, folder / LOG_FILE, job.exit_code, job.reason, excuse="" if attempt == first else late)
        for attempt, folder in folders.items()
    ]


def judge(
    traces: Mapping[Attempt, Traces], logs: Mapping[Attempt, Path], job: JobStatus, num_ranks: int
) -> list[AttemptEnded]:
    """Tell how the attempts of one job ended. When none is shown to be at fault, all that did not end well are."""
    culprit = next((simulation for (simulation, _), trace in traces.items() if trace.at_fault), None)
    judged = []
    for attempt, trace in traces.items():
        log = logs[attempt]
        if job.exit_code == 0 or trace.ended_well(num_ranks):
            judged.append(_end(attempt, job, log, 0, describe(0)))
        elif trace.at_fault or culprit is None:
            judged.append(_end(attempt, job, log, job.exit_code or None, trace.at_fault or job.reason))
        else:
            judged.append(_end(attempt, job, log, None, ENDED_WITH_JOB, excuse_of_failed(culprit)))
    return judged


def _end(
    attempt: Attempt, job: JobStatus, log: Path, exit_code: int | None, reason: str, excuse: str = ""
) -> AttemptEnded:
    return AttemptEnded(
        simulation=attempt[0],
        attempt=attempt[1],
        exit_code=exit_code,
        reason=reason,
        log=str(log),
        excuse=excuse or job.excuse,
    )


def _ranks_cannot_be_read(folder: Path) -> str:
    return f"how the ranks in {folder} ended cannot be read yet"


def _codes(folder: Path) -> tuple[int, ...]:
    try:
        words = read_file(folder / RANKS_FILE, max_bytes=MAX_TEXT_BYTES).split()
    except (FileNotFoundError, NotADirectoryError, UnusableFile):
        return ()
    codes = map(exit_code_in, words)
    return tuple(code for code in codes if code is not None)


def _log(own: Path, of_job: Path) -> Path:
    """The log about its end: its own, or mpirun's if it never wrote any."""
    return own if own.exists() and own.stat().st_size else of_job
