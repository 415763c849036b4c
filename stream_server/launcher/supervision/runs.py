"""The composition root of the launcher: builds the parts, runs them, and keeps the journal of that."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from stream_server.config import StudyConfig, check_continuation
from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.backends.backend import Backend, Outage
from stream_server.launcher.backends.environment import release_cores, simulation_environment
from stream_server.launcher.backends.mpirun import Mpirun
from stream_server.launcher.backends.registry import OwnBackend, check_backends, load_backend
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import LauncherLeft
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import MANY
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import Ensemble
from stream_server.launcher.simulations.remote_access import RemoteAccess, endpoint_file, remove_old_endpoint_files
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.launcher.supervision.server_job import ServerCommand
from stream_server.launcher.supervision.servers import Servers
from stream_server.launcher.supervision.supervisor import Supervisor
from stream_server.launcher.supervision.takeover import begin, end_earlier_run, is_resumed
from stream_server.machine import private_folder, run_folder
from stream_server.machine.forced_exit import URGENT, UrgentSignals, stop_signals
from stream_server.machine.screen import LogFile, PlainFormatter
from stream_server.machine.signals import Signals, ThreadErrors
from stream_server.machine.study_lock import LOCKS, RUN_LOCK, StudyLock
from stream_server.storage.disk import hold_folder, make_folder, read_text, replace_file

PROGRAM = "stream-launcher"
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def supervise_study(config: StudyConfig, command: ServerCommand, *, ends_at: float) -> int:
    """Run server and simulations of a study, or take over those of a launcher that was killed; returns the exit code.

    Raises:
        ConfigError: another process runs this study, its journal is damaged, a program is missing, the scheduler would
            not take the jobs, this node has no room for what the ranks share, or what is in the output folder is no run
            of ours.
    """
    run_folder.check(config.output_dir, resume=command.resume)
    check_backends(config)
    if closed := run_folder.claim(config.output_dir, config.study.share_with):
        print(f"{PROGRAM}: {closed}", file=sys.stderr, flush=True)
    jobs = _make_jobs(config)
    servers = Servers(config, jobs.outage)
    lock = StudyLock(config.output_dir / RUN_LOCK, PROGRAM)
    with run_folder.hold(config.output_dir, resume=command.resume), lock, Journal(config.output_dir) as journal:
        _start_log(config)
        # Before the backend is closed by whatever is refused: that ends the simulations of this study.
        if is_resumed(journal.history, servers.backend, link=None):
            if command.retry is not None:
                raise ConfigError(
                    "--retry is for a study that has ended, but this one goes on: its launcher was killed. Run the "
                    "command without --retry to take it over; once it has ended, --retry tries again"
                )
            if journal.history.server is not None:
                _check_takeover(config)
        if journal.history.server is None:
            command.require_room()
        with (
            ThreadErrors() as errors,
            Signals(signal.SIGCHLD, *stop_signals()) as signals,
            closing(jobs.backend),
            closing(servers),
        ):
            kept = _kept(config)
            address = begin(journal, jobs, servers, link=None).link
            folder = private_folder.of(address)
            with ServerConnection(address, _remote_access(config, command.ranks, folder, journal.history)) as link:
                exit_code = Supervisor(
                    command=replace(command, file=kept),
                    servers=servers,
                    ensemble=_make_ensemble(config, journal, link, jobs),
                    signals=signals,
                    ends_at=ends_at,
                    check_threads=_checking(errors, jobs.backend, servers),
                ).run()
        private_folder.remove(folder)
        journal.note(LauncherLeft(exit_code=exit_code))
    return exit_code


def _check_takeover(config: StudyConfig) -> None:
    """Refuse what the server could not go on with once it is started again, while it runs on.

    Raises:
        ConfigError: study.json has changed so.
    """
    with suppress(OSError, ValueError):
        check_continuation(json.loads(read_text(config.output_dir / run_folder.STUDY_FILE)), config)


def _kept(config: StudyConfig) -> Path:
    """The file that keeps the study as it is now: each start of the server reads that, and not what it has become."""
    file = config.output_dir / run_folder.LAUNCHED_FILE
    replace_file(file, (json.dumps(config.resolved(), indent=2) + "\n").encode())
    return file


def run_simulations(config: StudyConfig, address: str) -> int:
    """Run the simulations of a study whose server rank 0 speaks at `address` and holds the other end of our stdin.

    All jobs are ended before it leaves, by whatever way. Those of a launcher that rank 0 had before are taken over.
    Rank 0 puts our stderr into the launcher's log.

    Raises:
        ConfigError: another launcher runs this study, its journal is damaged, mpirun is missing, or the scheduler would
            not take the jobs.
    """
    release_cores()
    check_backends(config, has_server=True)
    jobs = _make_jobs(config)
    with hold_folder(config.output_dir), Journal(config.output_dir) as journal:
        _start_log(config)
        with ThreadErrors() as errors, Signals(signal.SIGCHLD, *stop_signals()) as signals, closing(jobs.backend):
            with closing(Servers(config, jobs.outage)) as servers:
                begin(journal, jobs, servers, link=address)
            with ServerConnection(address) as link:
                ensemble = _make_ensemble(config, journal, link, jobs)
                launcher = Unsupervised(
                    ensemble, signals, lifeline=sys.stdin.fileno(), check_threads=_checking(errors, jobs.backend)
                )
                launcher.run()
        journal.note(LauncherLeft(exit_code=0))
    if launcher.orphaned:
        # A rank 0 that was killed could not remove the folder of its sockets.
        private_folder.remove(private_folder.of(address))
    return 0


def rename_earlier_run(config: StudyConfig) -> str:
    """Give the output folder of an earlier run the name NAME.1 or the next that is free; says so, "" without one.

    Raises:
        ConfigError: another process still runs it, or its journal is damaged.
    """
    output_dir = config.output_dir
    run_folder.require_own(output_dir)
    if not output_dir.exists() or all(entry.name in LOCKS for entry in output_dir.iterdir()):
        return ""
    jobs = _make_jobs(config)
    with StudyLock(output_dir / RUN_LOCK, PROGRAM), Journal(output_dir) as journal:
        with closing(jobs.backend), closing(Servers(config, jobs.outage)) as servers:
            end_earlier_run(journal.history, jobs, servers)
        return run_folder.set_aside(output_dir)


class Unsupervised:
    """The launcher of a server that was started by hand. Main thread only.

    It runs the simulations until rank 0 says stop or is gone, or a signal comes. A second INT or TERM gives the jobs no
    grace any more: they are left to be killed.

    `lifeline` is the read end of a pipe that rank 0 holds open: its end means that rank 0 is gone, and makes us
    `orphaned`. `check_threads` raises what has ended one.
    """

    def __init__(self, ensemble: Ensemble, signals: Signals, lifeline: int, check_threads: Callable[[], None]) -> None:
        self.ensemble = ensemble
        self.link = ensemble.server
        self.signals = signals
        self.lifeline = lifeline
        self.check_threads = check_threads
        self.orphaned = False
        self._urgent = UrgentSignals()

    def run(self) -> None:
        """Serve until told to leave and every job has ended."""
        self.link.watch(self.lifeline, self.signals.readable)
        while not self.ensemble.has_left and self._urgent.num < 2:
            self._wait()
            self.check_threads()
            self.ensemble.turn()

    def _wait(self) -> None:
        ready = self.link.wait(self.ensemble.wake_at - time.monotonic())
        if self.lifeline in ready and not os.read(self.lifeline, 4096):
            self.link.ignore(self.lifeline)
            self.orphaned = True
            self.ensemble.leave("rank 0 of the server is gone")
        if self.signals.readable in ready:
            came = self.signals.take()
            if signal.SIGCHLD in came:
                self.ensemble.look_soon()
            # The others come to all processes of a job; rank 0 has them, too, and decides.
            for number in came & URGENT:
                self._urgent.count(number, time.monotonic())
                self.ensemble.leave(f"got {number.name}")


def _checking(errors: ThreadErrors, backend: Backend, servers: Servers | None = None) -> Callable[[], None]:
    """A function that raises the exception that has ended a thread, with a user's backend as an error of that."""

    def check() -> None:
        if (error := errors.first) is None:
            return
        backends = [backend, *(servers.backends if servers else ())]
        own = dict.fromkeys(backend.name for backend in backends if isinstance(backend, OwnBackend))
        if not own:
            raise error
        text = f"{' or '.join(own)}: a thread of it raised {type(error).__name__}: {error}"
        raise UserCodeError(text) from error

    return check


def limits(config: StudyConfig) -> ScheduleLimits:
    """The rules of the schedule, as the study sets them."""
    simulation = config.simulation
    return ScheduleLimits(
        starts_jobs=simulation.command is not None,
        max_running=config.launcher.max_running,
        per_job=simulation.per_job,
        per_worker=MANY if simulation.per_worker == "many" else simulation.per_worker,
        max_attached=config.client.max_attached,
        retries=simulation.retries,
        on_failure=simulation.on_failure,
        max_failed=simulation.max_failed,
        timeout_s=simulation.timeout_s,
        num_simulations=config.study.simulations + config.validation.simulations,
    )


def attempts(config: StudyConfig) -> AttemptFolders:
    """The common part of all attempts of a study."""
    simulation = config.simulation
    return AttemptFolders(
        command=tuple(simulation.command or ()),
        templates=tuple(simulation.templates),
        environment=simulation_environment(config),
        seed=config.study.data_seed,
        study_dir=config.study_dir,
        output_dir=config.output_dir,
        whole=config.parameters.whole,
    )


def _make_jobs(config: StudyConfig) -> AttemptJobs:
    outage = Outage()
    return AttemptJobs(
        load_backend(config, JobKind.of_simulations(config), outage),
        attempts(config),
        Mpirun.of(config),
        outage,
        are_workers=config.simulation.per_worker != 1,
    )


def _remote_access(config: StudyConfig, num_ranks: int, folder: Path, history: History) -> RemoteAccess | None:
    """The access for ranks on other nodes; the ranks of a server that is taken over already have it."""
    number = 0 if history.server is None else history.server.starting.number
    before = endpoint_file(folder, config.output_dir, number)
    remove_old_endpoint_files(config.output_dir, keep=before)
    return RemoteAccess.of(config, num_ranks, before)


def _make_ensemble(config: StudyConfig, journal: Journal, link: ServerConnection, jobs: AttemptJobs) -> Ensemble:
    ensemble = Ensemble(
        schedule=SimulationSchedule(limits(config)),
        jobs=jobs,
        server=link,
        journal=journal,
        keep_finished=config.simulation.keep_folders == "all",
    )
    ensemble.restore(journal.history)
    return ensemble


def _start_log(config: StudyConfig) -> None:
    """Write the log of this process."""
    file = config.output_dir / "logs" / "launcher.log"
    make_folder(file.parent)
    handler = LogFile(file)
    handler.setFormatter(PlainFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
