"""A launcher from beginning to end: builds its parts, runs them, and keeps the journal of that."""

import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.launcher import private_folder, processes
from stream_server.launcher.attempt_jobs import AttemptJobs
from stream_server.launcher.attempts import Attempts
from stream_server.launcher.companion import Companion
from stream_server.launcher.ensemble import Ensemble
from stream_server.launcher.environment import release_cores, simulation_environment
from stream_server.launcher.jobs import LocalJobs
from stream_server.launcher.journal import Journal
from stream_server.launcher.leftovers import end_leftovers, is_resumed
from stream_server.launcher.limits import Limits
from stream_server.launcher.mpirun import Mpirun
from stream_server.launcher.programs import ServerCommand
from stream_server.launcher.records import LauncherLeft, LauncherStarted
from stream_server.launcher.restarts import Restarts
from stream_server.launcher.schedule import Schedule
from stream_server.launcher.signals import Signals
from stream_server.launcher.sockets import Link
from stream_server.launcher.study_lock import LOCKS, RUN_LOCK, StudyLock
from stream_server.launcher.supervisor import Supervisor

PROGRAM = "stream-launcher"
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def run_study(config: StudyConfig, command: ServerCommand, *, ends_at: float) -> int:
    """Run server and simulations of a study, or take over those of a launcher that was killed; returns the exit code.

    Raises:
        ConfigError: another process runs this study, its journal is damaged, or a program is missing.
    """
    mpirun = Mpirun.of(config)
    asking = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    # Under nohup the end of the terminal is no reason to stop.
    asking += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
    lock = StudyLock(config.output_dir / RUN_LOCK, PROGRAM)
    with lock, Journal(config.output_dir) as journal, Signals(signal.SIGCHLD, *asking) as signals:
        _start_log(config)
        _begin(journal, config, link=None)
        assert journal.past.launcher is not None
        address = journal.past.launcher.link
        folder = private_folder.of(address)
        with Link(address) as link, LocalJobs() as jobs:
            exit_code = Supervisor(
                command=command,
                ensemble=_make_ensemble(config, journal, link, jobs, mpirun),
                link=link,
                signals=signals,
                journal=journal,
                restarts=Restarts(
                    config.launcher.restarts,
                    num_in_a_row=journal.past.num_in_a_row,
                    failed_batch=journal.past.failed_batch,
                ),
                output_dir=config.output_dir,
                folder=folder,
                ends_at=ends_at,
            ).run()
        private_folder.remove(folder)
        journal.note(LauncherLeft(exit_code=exit_code))
    return exit_code


def run_simulations(config: StudyConfig, address: str) -> int:
    """Run the simulations of a study whose server rank 0 speaks at `address` and holds the other end of our stdin.

    All jobs are ended before it leaves, by whatever way. Those of a launcher that rank 0 had before are taken over.
    Rank 0 puts our stderr into the launcher's log.

    Raises:
        ConfigError: another launcher runs this study, its journal is damaged, or mpirun is missing.
    """
    mpirun = Mpirun.of(config)
    release_cores()
    with Journal(config.output_dir) as journal, Signals(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD) as signals:
        _start_log(config)
        _begin(journal, config, link=address)
        with Link(address) as link, LocalJobs() as jobs:
            ensemble = _make_ensemble(config, journal, link, jobs, mpirun)
            companion = Companion(ensemble, link, signals, lifeline=sys.stdin.fileno())
            companion.run()
        journal.note(LauncherLeft(exit_code=0))
    if companion.orphaned:
        # A rank 0 that was killed could not remove the folder of its sockets.
        shutil.rmtree(private_folder.of(address), ignore_errors=True)
    return 0


def rename_earlier_run(output_dir: Path) -> None:
    """Give the output folder of an earlier run the name NAME.1 or the next that is free.

    Raises:
        ConfigError: another process still runs it, or its journal is damaged.
    """
    if not output_dir.exists() or all(entry.name in LOCKS for entry in output_dir.iterdir()):
        return
    with StudyLock(output_dir / RUN_LOCK, PROGRAM), Journal(output_dir) as journal:
        end_leftovers(journal.past, output_dir)
        number = 1
        while (free := output_dir.with_name(f"{output_dir.name}.{number}")).exists():
            number += 1
        output_dir.rename(free)


def limits(config: StudyConfig) -> Limits:
    """The rules of the schedule, as the study sets them."""
    simulation = config.simulation
    return Limits(
        starts_jobs=simulation.command is not None,
        max_running=config.launcher.max_running,
        per_job=simulation.per_job,
        max_attached=config.client.max_attached,
        retries=simulation.retries,
        on_failure=simulation.on_failure,
        max_failed=simulation.max_failed,
        timeout_s=simulation.timeout_s,
        num_simulations=config.study.simulations + config.validation.simulations,
    )


def attempts(config: StudyConfig) -> Attempts:
    """What the attempts of the study have in common."""
    simulation = config.simulation
    return Attempts(
        command=tuple(simulation.command or ()),
        templates=tuple(simulation.templates),
        environment=simulation_environment(config),
        seed=config.study.seed,
        study_dir=config.study_dir,
        output_dir=config.output_dir,
    )


def _begin(journal: Journal, config: StudyConfig, *, link: str | None) -> None:
    """Go on where another launcher was killed, or see that nothing of an earlier run is left; put it on record."""
    past = journal.past
    resumed = is_resumed(past, link=link)
    if not resumed:
        end_leftovers(past, config.output_dir)
        journal.past = past = past.of_other_runs()
    address = link or (past.launcher.link if past.launcher else private_folder.link(private_folder.new_name()))
    past.launcher = LauncherStarted(
        pid=os.getpid(), boot=processes.this_boot(), link=address, supervises=link is None, resumed=resumed
    )
    journal.note(past.launcher)
    if link is None:
        private_folder.make(private_folder.of(address), again=resumed)


def _make_ensemble(
    config: StudyConfig, journal: Journal, link: Link, jobs: LocalJobs, mpirun: Mpirun | None
) -> Ensemble:
    all_attempts = attempts(config)
    ensemble = Ensemble(
        schedule=Schedule(limits(config)),
        attempts=all_attempts,
        jobs=AttemptJobs(jobs, all_attempts, mpirun),
        server=link,
        journal=journal,
        keep_finished=config.simulation.keep_folders == "all",
    )
    ensemble.recall(journal.past)
    return ensemble


def _start_log(config: StudyConfig) -> None:
    """Write the log of this process, with UTC times."""
    file = config.output_dir / "logs" / "launcher.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=file, level=logging.INFO, format=LOG_FORMAT, force=True)
    logging.Formatter.converter = time.gmtime
