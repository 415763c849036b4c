"""The start of attempts: number, keys, parameters, connection to the server, and job."""

import errno
import logging
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.failpoints import failpoint
from stream_server.launcher.backends.backend import JobSpec
from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import Action, Continue, Submit
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.messages import launcher_link
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.curve import KeyPair
from stream_server.storage.disk import place_of

DISK_IS_TO_BLAME = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE})

log = logging.getLogger(__name__)


class Starter:
    """Starts the attempts the schedule wants, and leads those that outlived a server to the next. Main thread only.

    Nothing is started before the first plan has been `planned`.
    """

    def __init__(
        self, *, schedule: SimulationSchedule, jobs: AttemptJobs, server: ServerConnection, journal: Journal
    ) -> None:
        self.schedule = schedule
        self.attempts = jobs.attempts
        self.jobs = jobs
        self.server = server
        self.journal = journal
        # From the first plan, before which nothing is started.
        self._connection: ConnectionFile
        self._parameters: dict[int, dict[str, float]] = {}
        self._public_keys: dict[int, str | None] = {}
        self._is_held_back = False

    def planned(self, plan: launcher_link.Plan) -> None:
        """From now on attempts find the server where this plan says."""
        self._connection = plan.connection
        self._parameters |= {planned.simulation: planned.parameters for planned in plan.simulations}
        self._is_held_back = False

    def added(self, run: launcher_link.AddSimulation) -> None:
        """A simulation that was not in the plan is to be run as well."""
        self._parameters[run.simulation] = run.parameters

    def restore(self, simulation: int, public_key: str | None) -> None:
        """An attempt that another launcher has started has this key, None without security."""
        self._public_keys[simulation] = public_key

    def start(self, submits: Sequence[Submit]) -> list[Action]:
        """Start jobs; returns what is to be done about the attempts that cannot run.

        All are in the journal before the first is submitted. Those that cannot be prepared are left out of their job.
        While the disk refuses, none is started.
        """
        jobs = [[self._number(*attempt) for attempt in submit.attempts] for submit in submits]
        members = [member for job in jobs for member in job]
        keys = {simulation: self._new_keys() for simulation, _ in members}
        self._public_keys |= {simulation: pair.public if pair else None for simulation, pair in keys.items()}
        errors: dict[tuple[int, int], Exception] = {}
        try:
            prepared = [self._prepare(job, keys, errors) for job in jobs]
            self.journal.write(*(record for specs in prepared for record in self._starting_records(list(specs))))
        except OSError as error:
            self._postpone(members, error)
            return []
        self._is_held_back = False
        for simulation, attempt in members:
            # The server must know the key before the client can use it.
            self._announce(simulation, attempt)
        actions: list[Action] = []
        for (simulation, attempt), problem in errors.items():
            actions += self._cannot_be_prepared(simulation, attempt, problem)
        for specs in filter(None, prepared):
            self._submit(specs)
        return actions

    def go_on(self, action: Continue) -> None:
        """An attempt outlived a server or a launcher: the server must know it, and it must find the server."""
        simulation, attempt = action.simulation, action.attempt
        log.info("simulation %d, attempt %d goes on", simulation, attempt)
        self._announce(simulation, attempt, attached=action.attached, goes_on=True)
        if action.attached:
            return
        try:
            self.attempts.reconnect(simulation, attempt, self._connection)
        except (OSError, ConfigError) as error:
            log.warning("simulation %d, attempt %d cannot be told where the server is: %s", simulation, attempt, error)

    def note_submitted(self) -> None:
        for attempts, handle in self.jobs.take_submitted():
            self.journal.defer(
                *(
                    records.AttemptStarted(simulation=simulation, attempt=attempt, handle=handle)
                    for simulation, attempt in attempts
                )
            )

    def _announce(self, simulation: int, attempt: int, *, attached: bool = False, goes_on: bool = False) -> None:
        self.server.send(
            launcher_link.Attempt(
                simulation=simulation,
                attempt=attempt,
                public_key=None if attached else self._public_keys.get(simulation),
                attached=attached,
                goes_on=goes_on,
                waits_for=self.schedule.jobs.what_comes_before(simulation),
            )
        )

    def _number(self, simulation: int, attempt: int) -> tuple[int, int]:
        attempt = self.attempts.free_number(simulation, attempt)
        self.schedule.renumber(simulation, attempt)
        return simulation, attempt

    def _new_keys(self) -> KeyPair | None:
        return None if self._connection.security is None else KeyPair.make()

    def _prepare(
        self,
        members: Sequence[tuple[int, int]],
        keys: Mapping[int, KeyPair | None],
        errors: dict[tuple[int, int], Exception],
    ) -> dict[tuple[int, int], JobSpec]:
        """Make the specification of each attempt's job; problems go into `errors`, by attempt."""
        specs: dict[tuple[int, int], JobSpec] = {}
        for simulation, attempt in members:
            try:
                specs[simulation, attempt] = self.attempts.prepare(
                    simulation, attempt, self._parameters[simulation], self._connection, keys[simulation]
                )
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in DISK_IS_TO_BLAME:
                    raise
                errors[simulation, attempt] = error
        if self.jobs.are_workers and len(specs) > 1:
            specs[next(iter(specs))] = self.attempts.worker(list(specs.values()))
        return specs

    def _starting_records(self, members: Sequence[tuple[int, int]]) -> list[records.AttemptStarting]:
        job = str(self.attempts.folder(*members[0])) if len(members) > 1 else None
        return [
            records.AttemptStarting(
                simulation=simulation,
                attempt=attempt,
                folder=str(self.attempts.folder(simulation, attempt)),
                public_key=self._public_keys[simulation],
                job=job,
                ranks=self.jobs.ranks,
            )
            for simulation, attempt in members
        ]

    def _postpone(self, members: Sequence[tuple[int, int]], error: OSError) -> None:
        text = f"no simulation is started as long as the disk refuses: {error}"
        log.error("%s", text)
        if not self._is_held_back:
            # On a full disk our log cannot tell anybody.
            self.server.send(launcher_link.HeldBack(text=text))
            self._is_held_back = True
        for simulation, attempt in members:
            shutil.rmtree(Path(place_of(self.attempts.folder(simulation, attempt))), ignore_errors=True)
            self.schedule.postpone(simulation, time.monotonic())

    def _cannot_be_prepared(self, simulation: int, attempt: int, error: Exception) -> list[Action]:
        reason = f"could not be prepared: {error}"
        log.warning("simulation %d, attempt %d %s", simulation, attempt, reason)
        return self.schedule.job_ended(simulation, attempt, None, reason, time.monotonic())

    def _submit(self, specs: Mapping[tuple[int, int], JobSpec]) -> None:
        for (simulation, attempt), spec in specs.items():
            log.info("simulation %d, attempt %d: %s", simulation, attempt, shlex.join(spec.command))
        failpoint("launcher.before_submit")
        self.jobs.submit(specs, time.monotonic())
        for simulation, _ in specs:
            self.schedule.begun(simulation, time.monotonic())
        failpoint("launcher.after_submit")
        self.note_submitted()
