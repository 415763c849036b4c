"""A study on one rank, from beginning to end: open the output folder, set up, train, and close the account."""

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stream_server.buffers.batch_memory import no_memory
from stream_server.config import StudyConfig, check_ranks, differences
from stream_server.errors import (
    EXIT_FORCED,
    EXIT_SAVED,
    ConfigError,
    DamagedCheckpoint,
    NoUsableCheckpoint,
    SamplesNotWritten,
)
from stream_server.failpoints import failpoint
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.journal.journal import Journal
from stream_server.machine import descriptors, exit_watch, network, run_folder
from stream_server.machine.forced_exit import ForcedExit
from stream_server.machine.garbage import collect_seldom
from stream_server.machine.screen import print_escaped, write_escaped
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.checkpoint.continuation import by_rank_0, find_continuation, saved_settings
from stream_server.server.checkpoint.folder import STUDY, CheckpointFolder
from stream_server.server.progress.stop import Interrupted, StopRequests
from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.ranks.communicator import Ranks, SoloRanks, environment_rank, ranks_from_environment
from stream_server.server.reception.heartbeat import Heartbeat
from stream_server.server.replay.export import export_record
from stream_server.server.replay.simulation_file import load_h5py
from stream_server.server.run.logs import Logs
from stream_server.server.run.output import OutputFolder, require_given_up
from stream_server.server.run.plan import make_plan, memory_problem, memory_warning
from stream_server.server.run.start import RANK_0_REPORTS_S, StartOptions
from stream_server.server.simulations.simulation_table import given_up_in
from stream_server.server.study.closing import close, outcome_of, outcome_of_failure, write_and_show
from stream_server.server.study.failure import Failure, leave_together
from stream_server.server.study.prometheus import StudyCollector, serve_metrics
from stream_server.server.study.report import FAILED, Outcome
from stream_server.server.study.set_up import StudyRank
from stream_server.server.study.watchdog import Watchdog
from stream_server.storage.disk import hold_folder, remove_tree
from stream_server.storage.plain_state import damage_in, read_state
from stream_server.user_code import digest_of
from stream_server.wording import listed

PROGRAM = "stream-server"

log = logging.getLogger(__name__)


def run_study(config: StudyConfig, start: StartOptions) -> int:
    """Run a study on all ranks of this MPI job, or on one rank outside of MPI. Collective.

    Returns:
        The exit code, the same on all ranks.

    Raises:
        ConfigError: the study cannot begin; the same on all ranks.
        NoUsableCheckpoint: it cannot go on either; the same on all ranks.
    """
    rank, collectives = environment_rank(), CollectiveCalls()
    stops = StopRequests(is_followed=start.is_followed)
    watchdog = Watchdog.of(config, collectives, config.output_dir)
    with ExitStack() as stack:
        stack.enter_context(ForcedExit())
        stops.in_set_up = True
        # A launcher has said it already.
        is_heard = not rank and start.link is None
        stack.enter_context(stops.on_signals(say=_say_at_once if is_heard else lambda text: None))
        stack.enter_context(
            nullcontext() if start.alive is None else Heartbeat(start.alive, rank or 0, start.launcher_keys)
        )
        stack.enter_context(watchdog)
        ranks: Ranks | None = None
        try:
            ranks = ranks_from_environment(collectives)
            watchdog.watch(ranks)
            exit_code = _run(config, ranks, start, stops, watchdog)
            if ranks.is_cut_short:
                ranks.abort(exit_code)
            return exit_code
        except (ConfigError, NoUsableCheckpoint):
            stops.in_set_up = False
            if ranks is None and rank:
                time.sleep(RANK_0_REPORTS_S)
            raise
        except MemoryError as error:
            _end(ranks, f"rank {rank or 0}: {no_memory(error)}", ConfigError.exit_code)
        except Interrupted as error:
            _end(ranks, f"rank {rank or 0}: {error}", EXIT_SAVED)
        except KeyboardInterrupt as error:
            _end(ranks, f"rank {rank or 0}: {error or 'interrupted'}", EXIT_FORCED)
        except BaseException as error:
            failure = Failure.of(error, rank=rank or 0, phase="start")
            _end(ranks, f"rank {rank or 0}:\n{failure.traceback}", failure.exit_code)


def _say_at_once(text: str) -> None:
    write_escaped(f"{PROGRAM}: {text}")


def _end(ranks: Ranks | None, text: str, exit_code: int) -> NoReturn:
    """Tell why, and end all ranks at once."""
    print_escaped(text, sys.stderr)
    (SoloRanks() if ranks is None else ranks).abort(exit_code)


def _run(config: StudyConfig, ranks: Ranks, start: StartOptions, stops: StopRequests, watchdog: Watchdog) -> int:
    check_ranks(config, ranks.size)
    if config.offline.write_files:
        load_h5py()
    # The limits of nodes may differ.
    num = make_plan(config).connections + descriptors.STRANGERS
    _refuse(ranks, descriptors.raise_limit(num, descriptors.FOR_CONNECTIONS, spare=descriptors.BURST))
    _require_memory(config, ranks)
    _require_network(config, ranks)
    folder = OutputFolder(config.output_dir)
    if not start.fresh and (told := by_rank_0(ranks, lambda: _told_if_over(config, folder, start))):
        if ranks.rank == 0:
            print(told)
        return 0
    by_rank_0(ranks, lambda: _require_program(config, start))
    with ExitStack() as locks:
        by_rank_0(ranks, lambda: _take_folder(config, folder, start, locks))
        for used in (folder.path, config.checkpoint.dir):
            if ranks.rank != 0 and used is not None:
                locks.enter_context(hold_folder(used))
        earlier = by_rank_0(
            ranks,
            lambda: folder.prepare(config, resume=start.resume, saved=saved_settings(config, folder)),
        )
        continuation = find_continuation(config, ranks, folder, partial(_chosen_to_retry, start.retry), earlier)
        watchdog.is_outdated = continuation.is_outdated
        exit_watch.note_incarnation(continuation.identity.incarnation)
        with Logs(folder.path, ranks.rank), ExitStack() as writers:
            collector = StudyCollector(config.study.name, continuation.identity.incarnation)
            by_rank_0(ranks, lambda: _open_metrics_page(config, folder, collector, locks))
            try:
                study = StudyRank(config, ranks, folder, continuation, start, stops, collector)
            except MemoryError:
                raise
            except Exception as error:
                # A launcher cannot rely on the exit status of mpirun, and reads exit.json.
                Failure.of(error, rank=ranks.rank, phase="set-up").record(folder.path)
                raise
            return train(study, writers)


def _told_if_over(config: StudyConfig, folder: OutputFolder, start: StartOptions) -> str:
    """What to say if the study is finished, and nothing of it is to be tried again; "" if it goes on. Rank 0.

    Raises:
        ConfigError: it is finished, but `config` would have trained something else.
    """
    if not folder.is_finished(config.resolved()):
        return ""
    earlier = folder.check_start(config, resume=start.resume)
    if start.retry is not None and folder.has_given_up(config, start.retry):
        return ""
    checkpoints, changed = CheckpointFolder(config.checkpoint.dir or folder.checkpoints), ""
    with suppress(DamagedCheckpoint, OSError):
        its_class = digest_of(config.server.class_, config.study_dir)
        if any(checkpoints.manifest(number).class_digest != its_class for number in checkpoints.numbers()[-1:]):
            changed = " The file with the server class has changed since then, and its model has not."
    if earlier is not None and (others := [it.path for it in differences(earlier, config) if it.is_of_training]):
        changed += f" What study.json has changed since then ({listed(others)}) has no effect on it."
    return (
        f"{config.study.name} is finished: {folder.report} says how.{changed} More study.simulations go on with it, "
        "--retry tries simulations again that were given up, another study.output_dir trains another model beside it, "
        "and --fresh starts it over."
    )


def _chosen_to_retry(wanted: Sequence[int] | None, study_state: Path | None) -> Sequence[int]:
    """The given-up simulations of a checkpoint to try again: all if none is named. Rank 0."""
    if wanted is None:
        return ()
    with damage_in(STUDY):
        given_up = given_up_in({} if study_state is None else read_state(study_state)["roster"] or {})
    require_given_up(wanted, given_up)
    return wanted or given_up


def _open_metrics_page(config: StudyConfig, folder: OutputFolder, collector: StudyCollector, stack: ExitStack) -> None:
    """Serve the page for Prometheus if the study asks for it. Rank 0."""
    port = config.metrics.prometheus_port
    if port is not None:
        address = stack.enter_context(serve_metrics(collector, port, folder.prometheus))
        log.info("metrics for Prometheus: %s", address)


def _take_folder(config: StudyConfig, folder: OutputFolder, start: StartOptions, locks: ExitStack) -> None:
    """Close the output folder to others and lock it, before anything in it is changed. Rank 0.

    Raises:
        ConfigError: another process runs the study in it, or it holds something else.
    """
    if not start.fresh:
        run_folder.check(folder.path, resume=start.resume)
    _claim(folder.path, config)
    holding = locks.enter_context(ExitStack())
    holding.enter_context(
        hold_folder(folder.path) if start.fresh else run_folder.hold(folder.path, resume=start.resume)
    )
    of_folder = locks.enter_context(ExitStack())
    _lock(folder.path, start, of_folder)
    if start.link is None:
        Journal.check_free(folder.path)
    if start.fresh and (renamed := folder.set_aside()):
        print_escaped(f"{PROGRAM}: {renamed}", sys.stderr)
        # The locks have gone with the folder of the earlier run, which nobody runs any more.
        holding.close()
        with of_folder.pop_all():
            _claim(folder.path, config)
            holding.enter_context(hold_folder(folder.path))
            _lock(folder.path, start, locks)
    checkpoints = config.checkpoint.dir
    if checkpoints is not None and checkpoints.resolve() != folder.path.resolve():
        _claim(checkpoints, config)
        locks.enter_context(hold_folder(checkpoints))
        locks.enter_context(_server_lock(checkpoints, start))


def _claim(folder: Path, config: StudyConfig) -> None:
    if closed := run_folder.claim(folder, config.study.share_with):
        print(f"stream-server: {closed}", file=sys.stderr, flush=True)


def _lock(folder: Path, start: StartOptions, locks: ExitStack) -> None:
    if start.link is None:
        locks.enter_context(StudyLock(folder / RUN_LOCK, PROGRAM))
    locks.enter_context(_server_lock(folder, start))


def _server_lock(folder: Path, start: StartOptions) -> StudyLock:
    # A launcher starts a server only when it has killed the one before.
    return StudyLock(folder / SERVER_LOCK, PROGRAM, was_killed=start.link is not None)


def _require_program(config: StudyConfig, start: StartOptions) -> None:
    """Refuse a study whose simulations name a program that is missing; stream-launcher has looked before. Rank 0."""
    if start.link is None and start.replay is None and config.launcher.backend == "local":
        LocalBackend(config).check()


def _refuse(ranks: Ranks, problem: str) -> None:
    """Refuse, on all ranks, what is wrong on one of them. Collective."""
    problems = ranks.gather(problem)
    if first := ranks.broadcast(problems and next(filter(None, problems), "")):
        raise ConfigError(first)


def _require_network(config: StudyConfig, ranks: Ranks) -> None:
    """Refuse an interface that a node does not have, or by which it cannot be reached from the others."""
    wanted, problem = config.network.interface, ""
    if wanted is None:
        return
    try:
        interface = network.chosen(wanted)
    except ConfigError as error:
        problem = str(error)
    else:
        if interface.is_loopback and ranks.num_nodes > 1:
            problem = f"network.interface: the ranks are on {ranks.num_nodes} nodes, which do not reach each other by "
            problem += f"{interface}. Name another interface, or the subnet in which all nodes have an address"
    _refuse(ranks, problem)
    if ranks.rank == 0:
        log.info("network.interface: %s", network.description_of(wanted))


def _require_memory(config: StudyConfig, ranks: Ranks) -> None:
    """Refuse samples for which a node has no memory, before they fill what it has."""
    sizes = config, ranks.size, ranks.local_size
    _refuse(ranks, memory_problem(*sizes))
    if warning := next(filter(None, ranks.gather(memory_warning(*sizes)) or ()), ""):
        print(f"stream-server: WARNING: {warning}", file=sys.stderr, flush=True)


def train(study: StudyRank, writers: ExitStack) -> int:
    """Train to the end and close the account, before the `writers` of metrics. Collective; returns the exit code."""
    stage, stops = "set-up", study.stops
    with ExitStack() as stack:
        try:
            with collect_seldom():
                training = study.open(stack, writers)
            stage = "training"
            training.run()
            if study.display is not None:
                study.display.make_way()
            stage = "checkpoint"
            study.source.stop_receiving()
            failpoint("server.before_last_checkpoint")
            is_saved = study.checkpoints.take_last()
            stage = "end"
            failpoint("server.before_end")
            study.source.stop_simulations(stops)
            outcome = outcome_of(stops, is_saved=is_saved)
        except Exception as error:
            outcome = _leave(study, error, stage)
    writes_files = study.config.offline.write_files
    if writes_files and outcome.exit_code == 0:
        outcome = _write_files(study, outcome)
    exit_code = close(study, outcome)
    if writes_files and exit_code == 0 and study.ranks.rank == 0:
        # Only now, since closing this study once more writes the files that are missing from it.
        remove_tree(study.folder.record)
    return exit_code


def _write_files(study: StudyRank, outcome: Outcome) -> Outcome:
    """Write the samples to files; all are recorded. Collective."""
    simulations = study.source.simulations
    ends = [] if simulations is None else [(i, end.state) for i, end in simulations.ends.items()]
    in_state: dict[str, set[int]] = {phase: set() for phase in SimulationPhase}
    for simulation, state in study.ranks.broadcast(ends):
        in_state[state].add(simulation)
    try:
        are_written = export_record(
            study.ranks,
            study.folder.record,
            study.folder.samples,
            finished=in_state[SimulationPhase.FINISHED],
            invalid=in_state[SimulationPhase.INVALID],
            must_leave=lambda: study.stops.pending is not None,
        )
    except SamplesNotWritten as error:
        return Outcome(exit_code=error.exit_code, reason=FAILED, message=str(error))
    if not are_written:
        return Outcome(exit_code=EXIT_SAVED, reason="saved", message="all samples are recorded, not all in files")
    return outcome


def _leave(study: StudyRank, error: Exception, stage: str) -> Outcome:
    """Make all ranks end because of `error`, in order if they can be reached, or else at once."""
    study.stops.in_set_up = False
    ranks = study.ranks
    where: Any = {"phase": stage, "batch": study.progress.batches if stage == "training" else None}
    # What is in the folder of a server that was replaced speaks of its successor.
    folder = None if study.continuation.is_outdated() else study.folder.path
    agreed = leave_together(error, ranks, folder, **where)
    failure = (folder and Failure.read(folder)) or Failure.of(error, rank=ranks.rank, **where)
    if failure.phase == "set-up" or agreed is None:
        # Also on a rank that was set up already: of a start that never trained, or whose ranks did not come together,
        # no rank has an account.
        study.is_set_up = False
    if agreed is None or ranks.rank == 0:
        print_escaped(f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}", sys.stderr)
    if agreed is None:
        write_and_show(study, outcome_of_failure(failure), [])
        ranks.abort(failure.exit_code)
    return outcome_of_failure(failure)
