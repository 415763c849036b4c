"""The server as a job of a scheduler: one start of it, from its submission to its end, and what it prints."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    LOG_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    SubmitError,
    exit_code_of,
)
from stream_server.launcher.backends.outage import Outage
from stream_server.machine.screen import escaped

# A job on a node that is gone ends only when the scheduler notices that. The next server need not wait for it.
GONE_S = 60.0
LOOK_S = 0.2
MAX_READ_BYTES = 65536

log = logging.getLogger(__name__)


class SubmittedServer:
    """One start of the server as a job of `backend`, in the folder `folder`. Main thread only.

    `look` moves things on; `outage` tells when its scheduler does not answer. `state` is what that said last, `status`
    the exit code, None if it is not known, and `reason` how it ended, in words that follow its name. `is_outside` when
    the scheduler has ended it, which is the fault of no server: its time was over, or its node was lost.
    """

    def __init__(self, backend: Backend, folder: Path, handle: str, *, outage: Outage, follows_from: int = 0) -> None:
        self.backend = backend
        self.folder = folder
        self.handle = handle
        self.outage = outage
        self.state = JobState.UNKNOWN
        self.status: int | None = None
        self.reason = ""
        self.is_outside = False
        self.is_cancelled = False
        self.is_over = False
        self.killed = False
        self.wake_at = 0.0
        self._give_up_at: float | None = None
        self._waits_for = ""
        self._output = Output(folder / LOG_FILE, follows_from)

    @classmethod
    def submit(cls, backend: Backend, spec: JobSpec, outage: Outage) -> Self:
        """Submit it. One that cannot be submitted has ended."""
        job = cls(backend, spec.folder, "", outage=outage)
        try:
            spec.folder.mkdir(parents=True, exist_ok=True)
            job.handle = backend.submit(spec)
        except SubmitError as error:
            job._end(JobStatus(state=JobState.ENDED, exit_code=error.exit_code, reason=str(error)))
        except OSError as error:
            job._end(JobStatus(state=JobState.ENDED, reason=f"could not be submitted: {error}"))
        return job

    @classmethod
    def adopt(cls, backend: Backend, folder: Path, outage: Outage) -> Self | None:
        """The job that another launcher has submitted; None if it had not come to that."""
        # Its marks are for backends that look at processes.
        handle = backend.reattach(SavedJob(folder=folder, marks=frozenset(), handle=None))
        status = backend.query([handle]).get(handle, JobStatus(state=JobState.UNKNOWN))
        if status.state is JobState.ENDED:
            return None
        output = folder / LOG_FILE
        position = output.stat().st_size if output.exists() else 0
        return cls(backend, folder, handle, outage=outage, follows_from=position)

    def ask_to_leave(self) -> None:
        """End one that does not listen yet, since it waits in the queue, or has just begun."""
        self.is_cancelled = True
        self._cancel()

    def kill(self, now: float) -> None:
        """End it; `is_over` when it has ended, or is taken for gone."""
        if self._give_up_at is None:
            self._give_up_at = now + GONE_S
        self.killed = True
        self._cancel()
        self.look(now)

    def abandon(self) -> None:
        """Wait for its end no longer: its backend ends it for good when it is closed."""
        self.is_over = True

    def look(self, now: float) -> None:
        """See what the scheduler says of it, and show what it printed."""
        is_given_up = self._give_up_at is not None and now >= self._give_up_at
        if self.is_over or (now < self.wake_at and not is_given_up):
            return
        self.wake_at = now + max(LOOK_S, self.backend.query_interval_s)
        with self.outage.within("nothing is known of the job of the server"):
            status = self.backend.query([self.handle]).get(self.handle, JobStatus(state=JobState.UNKNOWN))
            self._take(status)
        self._output.show()
        if is_given_up and not self.is_over:
            log.warning("the job of the server, %s, has not ended: what is left of it is fenced off", self.handle)
            self.is_over = True

    def stopped_pid(self, now: float) -> int | None:
        """A process of it that a signal holds, which nobody can see from here."""
        return None

    def _cancel(self) -> None:
        with self.outage.within("the job of the server cannot be cancelled yet"):
            self.backend.cancel([self.handle])

    def _take(self, status: JobStatus) -> None:
        if status.state is not self.state or status.reason not in ("", self._waits_for):
            self._waits_for = status.reason
            why = f" ({status.reason})" if status.reason else ""
            log.info("the job of the server, %s, is %s%s", self.handle, status.state, why)
        self.state = status.state
        if status.state is JobState.ENDED:
            self._end(status)

    def _end(self, status: JobStatus) -> None:
        self.status = status.exit_code
        with suppress(OSError):
            self.status = exit_code_of(self.folder / EXIT_FILE) if self.status is None else self.status
        self.reason = status.reason or "has ended"
        self.is_outside = bool(status.excuse) or status.is_out_of_time
        self.is_over = True


class Output:
    """The output of a job, which is shown as it grows."""

    def __init__(self, file: Path, position: int) -> None:
        self.file = file
        self.position = position

    def show(self) -> None:
        """Print what has come since the last time."""
        try:
            with self.file.open("rb") as opened:
                opened.seek(self.position)
                new = opened.read(MAX_READ_BYTES)
        except OSError:
            return
        self.position += len(new)
        # The terminal may be gone.
        with suppress(OSError):
            sys.stderr.write(escaped(new.decode(errors="replace")))
            sys.stderr.flush()


def folder_of(output_dir: Path, number: int) -> Path:
    """The folder of the job that is the `number`-th start of the server."""
    return output_dir / "server" / f"start-{number}"
