"""The two ways to run the server: as processes beside the launcher, and as a job of a scheduler."""

import logging
import os
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from stream_server.config import StudyConfig
from stream_server.launcher.backends.backend import Backend, JobSpec
from stream_server.launcher.backends.environment import mpirun_environment, scrubbed, server_environment, with_threads
from stream_server.launcher.backends.outage import EXPECTED, Outage, said_by
from stream_server.launcher.backends.registry import load_server_backend
from stream_server.launcher.journal.history import OpenServer
from stream_server.launcher.journal.records import ServerStarting
from stream_server.launcher.supervision.server_job import LOCAL, LocalServer, ServerJob
from stream_server.launcher.supervision.submitted_server import SubmittedServer, folder_of

IPC_VARIABLE = "STREAM_IPC_FOLDER"

log = logging.getLogger(__name__)


class Servers:
    """Starts the server of a study, and takes over one that an earlier launcher has started. Main thread only.

    Its scheduler may be that of the simulations: both have one `outage`, so that what is away is told once. At the end
    of the `with` block no job of it is left.
    """

    def __init__(self, config: StudyConfig, outage: Outage) -> None:
        self.config = config
        self.outage = outage
        self._backends: dict[str, Backend] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, backend in self._backends.items():
            try:
                backend.close()
            except EXPECTED as away:
                log.warning("jobs of the server may go on: %s: %s", name, said_by(away))

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
            self._backends[name] = load_server_backend(self.config, name, self.outage)
        return self._backends[name]
