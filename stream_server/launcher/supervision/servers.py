"""The two ways to run the server: as processes beside the launcher, and as a job of a scheduler."""

import logging
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from stream_server.config import StudyConfig
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    EXPECTED,
    LOG_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    Outage,
    SavedJob,
    SubmitError,
    exit_code_of,
    stderr_of,
)
from stream_server.launcher.backends.environment import mpirun_environment, scrubbed, server_environment, with_threads
from stream_server.launcher.backends.registry import load_backend
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.launcher.journal.history import OpenServer
from stream_server.launcher.journal.records import ServerStarting
from stream_server.launcher.supervision.server_job import LOCAL, LocalServer, ServerJob
from stream_server.machine.screen import escaped

LOOK_S = 0.2
MAX_READ_BYTES = 65536
NOT_FOUND = "whether the job of the server was submitted is not known"
NOT_KNOWN = "nothing is known of the job of the server"
NOT_CANCELLED = "the job of the server cannot be cancelled yet"

IPC_VARIABLE = "STREAM_IPC_FOLDER"

log = logging.getLogger(__name__)


class SubmittedServer(ServerJob):
    """The server as a job of `backend`, in the folder `folder`.

    It has no `handle` until the backend has taken it, or has taken it over: it is looked for until that answers.
    `outage` tells when its scheduler does not answer, and `state` is what that said last.
    """

    title = "the job of the server"
    is_followed = True

    def __init__(self, backend: Backend, folder: Path, *, outage: Outage, follows_from: int = 0) -> None:
        super().__init__(JobState.UNKNOWN)
        self.backend = backend
        self.folder = folder
        self.outage = outage
        self.handle = ""
        self.log = folder / LOG_FILE
        self._must_cancel = False
        self._waits_for = ""
        self._num_shown = follows_from

    @classmethod
    def submit(cls, backend: Backend, spec: JobSpec, outage: Outage) -> Self:
        """Submit it. One that cannot be submitted has ended."""
        job = cls(backend, spec.folder, outage=outage)
        try:
            spec.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            job._end(JobStatus(state=JobState.ENDED, reason=f"could not be submitted: {error}"))
            return job
        try:
            job.handle = backend.submit(spec)
        except SubmitError as error:
            job._end(JobStatus(state=JobState.ENDED, exit_code=error.exit_code, reason=str(error)))
        except EXPECTED as error:
            # It may run. To submit it again could give two jobs one folder.
            job.outage.unanswered(NOT_FOUND, error)
        return job

    @classmethod
    def adopt(cls, backend: Backend, folder: Path, outage: Outage) -> Self | None:
        """The job that another launcher has submitted; None if it has ended, or had not come to be submitted."""
        output = folder / LOG_FILE
        job = cls(backend, folder, outage=outage, follows_from=output.stat().st_size if output.exists() else 0)
        job._ask()
        return None if job.is_over else job

    def ask_to_leave(self) -> None:
        """End one that does not listen yet, since it waits in the queue, or has just begun."""
        self.is_cancelled = True
        self._cancel()

    def kill(self, now: float) -> None:
        self._cancel()
        self.look(now)

    def abandon(self) -> None:
        """Take it for gone: its incarnation is fenced off, and its backend ends it for good when it is closed."""
        if not self.is_over:
            log.warning("the job of the server, %s, has not ended: what is left of it is fenced off", self.handle)
            self._end(JobStatus(state=JobState.UNKNOWN, reason="has not ended"))

    def look(self, now: float) -> None:
        """See what the scheduler says of it, and show what it printed."""
        if self.is_over or now < self.wake_at:
            return
        self.wake_at = now + max(LOOK_S, self.backend.query_interval_s)
        self._ask()
        self._show_output()

    def _ask(self) -> None:
        if not self.handle:
            with self.outage.within(NOT_FOUND):
                self._find()
        if self.handle:
            with self.outage.within(NOT_KNOWN):
                status = self.backend.query([self.handle]).get(self.handle, JobStatus(state=JobState.UNKNOWN))
                self._take(status)
        if self._must_cancel and not self.is_over:
            self._cancel()

    def _find(self) -> None:
        try:
            # Its marks are for backends that look at processes.
            self.handle = self.backend.reattach(SavedJob(folder=self.folder, marks=frozenset(), handle=None))
        except SubmitError as error:
            self._end(JobStatus(state=JobState.ENDED, reason=f"was not submitted: {error}", excuse=str(error)))

    def _cancel(self) -> None:
        self._must_cancel = True
        if self.handle:
            with self.outage.within(NOT_CANCELLED):
                self.backend.cancel([self.handle])
                self._must_cancel = False

    def _take(self, status: JobStatus) -> None:
        if status.state is not self.state or status.reason not in ("", self._waits_for):
            self._waits_for = status.reason
            why = f" ({status.reason})" if status.reason else ""
            log.info("the job of the server, %s, is %s%s", self.handle, status.state, why)
        self.state = status.state
        if status.state is JobState.ENDED:
            self._end(status)

    def _end(self, status: JobStatus) -> None:
        code = status.exit_code
        with suppress(OSError):
            code = exit_code_of(self.folder / EXIT_FILE) if code is None else code
        self.end = replace(status, exit_code=code, reason=status.reason or "has ended")
        for question in (NOT_FOUND, NOT_KNOWN, NOT_CANCELLED):
            self.outage.answered(question)

    def _show_output(self) -> None:
        # The terminal may be gone.
        with suppress(OSError), (self.folder / LOG_FILE).open("rb") as opened:
            opened.seek(self._num_shown)
            new = opened.read(MAX_READ_BYTES)
            self._num_shown += len(new)
            sys.stderr.write(escaped(new.decode(errors="replace")))
            sys.stderr.flush()


def folder_of(output_dir: Path, number: int) -> Path:
    """The folder of the job that is the `number`-th start of the server."""
    return output_dir / "server" / f"start-{number}"


class Servers:
    """Starts the server of a study, and takes over one that an earlier launcher has started. Main thread only.

    Its scheduler may be that of the simulations: both have one `outage`, so that what is away is told once.
    """

    def __init__(self, config: StudyConfig, outage: Outage) -> None:
        self.config = config
        self.outage = outage
        self._backends: dict[str, Backend] = {}

    def close(self) -> None:
        """Leave no job of the server behind."""
        for name, backend in self._backends.items():
            try:
                backend.close()
            except EXPECTED as away:
                log.warning("jobs of the server may go on: %s: %s", name, stderr_of(away))

    @property
    def backends(self) -> Collection[Backend]:
        """The backends that were asked for jobs of the server."""
        return self._backends.values()

    @property
    def backend(self) -> str:
        """The name of what runs the servers that are started from now on."""
        return self.config.server.backend

    def free_number(self, number: int) -> int:
        """The first number of a start, from this one on, whose folder no job has used that the journal has lost."""
        while self.backend != LOCAL and os.path.lexists(folder_of(self.config.output_dir, number)):
            number += 1
        return number

    def start(self, starting: ServerStarting, command: Sequence[str], *, is_spread: bool) -> ServerJob:
        """Run a command that starts the server; `is_spread` if its ranks may be on several nodes."""
        if starting.backend == LOCAL:
            environment = mpirun_environment(self.config, None if is_spread else starting.folder)
            return LocalServer.start(command, {**environment, IPC_VARIABLE: starting.folder}, starting.folder)
        own = server_environment(self.config)
        folder = folder_of(self.config.output_dir, starting.number)
        return SubmittedServer.submit(
            self._of(starting.backend),
            JobSpec(
                command=tuple(command),
                environment=with_threads({**scrubbed(os.environ), **own}, self.config.server.job.cores_per_rank),
                folder=folder,
                marks=frozenset(),
                ranks=starting.ranks,
            ),
            self.outage,
        )

    def adopt(self, server: OpenServer) -> ServerJob | None:
        """The server that another launcher has started; None when nothing of it runs any more."""
        starting = server.starting
        if starting.backend == LOCAL:
            return LocalServer.adopt(starting.folder, server.leader)
        folder = folder_of(self.config.output_dir, starting.number)
        return SubmittedServer.adopt(self._of(starting.backend), folder, self.outage)

    def _of(self, name: str) -> Backend:
        if name not in self._backends:
            kind = replace(JobKind.of_server(self.config), backend=name)
            self._backends[name] = load_backend(self.config, kind, self.outage)
        return self._backends[name]
