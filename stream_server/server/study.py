"""A study on one rank, from beginning to end: builds its parts, runs them, and settles the account."""

import math
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig, check_ranks
from stream_server.errors import ConfigError, NoUsableCheckpoint
from stream_server.failpoints import failpoint
from stream_server.launcher import descriptors
from stream_server.launcher.forced_exit import EXIT_FORCED, ForcedExit
from stream_server.launcher.journal import Journal
from stream_server.launcher.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock
from stream_server.server import memory_need, parts
from stream_server.server.batch_memory import no_memory
from stream_server.server.closing import EXIT_SAVED, Closing, Simulations, outcome_of, rank_report
from stream_server.server.continuation import Continuation, by_rank_0, find_continuation
from stream_server.server.cores import NO_SIMULATIONS, SimulationCores, share_cores, wait_passively
from stream_server.server.design import ParameterDesign
from stream_server.server.failure import Failure, leave_together
from stream_server.server.learning import Learning
from stream_server.server.logs import Logs
from stream_server.server.meetings import Meetings
from stream_server.server.output import OutputFolder
from stream_server.server.plan import make_plan
from stream_server.server.rank_parts import RankParts
from stream_server.server.ranks import Ranks, SoloRanks, environment_rank, ranks_from_environment
from stream_server.server.reception import Reception
from stream_server.server.record.replay import ReplayFeed
from stream_server.server.report import Outcome, RankReport
from stream_server.server.set_up import SetUp
from stream_server.server.sign_of_life import SignOfLife
from stream_server.server.source import Source
from stream_server.server.start import FIRST_WORD_S, Start
from stream_server.server.training.display import Status
from stream_server.server.training.length import Length
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import Interrupted, StopRequests
from stream_server.server.watchdog import Watchdog

LARGEST_MARGIN_S = 120.0
PROGRAM = "stream-server"


def run_study(config: StudyConfig, start: Start) -> int:
    """Run a study on all ranks of this MPI job, or on one rank outside of MPI. Collective.

    Returns:
        The exit code, the same on all ranks.

    Raises:
        ConfigError: the study cannot begin; the same on all ranks.
        NoUsableCheckpoint: it cannot go on either; the same on all ranks.
    """
    rank, meetings, stops = environment_rank(), Meetings(), StopRequests()
    watchdog = Watchdog(
        meetings,
        rank=rank or 0,
        stall_s=config.server.stall_s,
        output_dir=config.output_dir,
        is_under_mpirun=rank is not None,
    )
    with ExitStack() as stack:
        stack.enter_context(ForcedExit())
        stops.in_set_up = True
        stack.enter_context(stops.on_signals())
        stack.enter_context(nullcontext() if start.alive is None else SignOfLife(start.alive, rank or 0))
        stack.enter_context(watchdog)
        ranks: Ranks | None = None
        try:
            ranks = ranks_from_environment(meetings)
            watchdog.watch(ranks)
            return _run(config, ranks, start, stops, watchdog)
        except (ConfigError, NoUsableCheckpoint):
            stops.in_set_up = False
            if ranks is None and rank:
                time.sleep(FIRST_WORD_S)
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


def _end(ranks: Ranks | None, text: str, exit_code: int) -> NoReturn:
    """Tell why, and end all ranks at once."""
    print(text, file=sys.stderr, flush=True)
    (SoloRanks() if ranks is None else ranks).abort(exit_code)


def _run(config: StudyConfig, ranks: Ranks, start: Start, stops: StopRequests, watchdog: Watchdog) -> int:
    check_ranks(config, ranks.size)
    _require_descriptors(config, ranks)
    _require_memory(config, ranks)
    folder = OutputFolder(config.output_dir)
    if not start.fresh and by_rank_0(ranks, lambda: folder.is_finished(config.study.simulations)):
        if ranks.rank == 0:
            print(f"{config.study.name} is finished: {folder.report} says how. --fresh starts it over.")
        return 0
    with ExitStack() as locks:
        by_rank_0(ranks, lambda: _take_folder(config, folder, start, locks))
        by_rank_0(ranks, lambda: folder.prepare(config, resume=start.resume))
        continuation = find_continuation(config, ranks, folder)
        watchdog.is_outdated = continuation.is_outdated
        with Logs(folder.path, ranks.rank):
            try:
                study = StudyRank(config, ranks, folder, continuation, start, stops)
            except MemoryError:
                raise
            except Exception as error:
                # The status of mpirun tells a launcher nothing.
                Failure.of(error, rank=ranks.rank, phase="set-up").record(folder.path)
                raise
            return study.run()


def _take_folder(config: StudyConfig, folder: OutputFolder, start: Start, locks: ExitStack) -> None:
    """Lock the output folder before anything in it is changed. Rank 0.

    Raises:
        ConfigError: another process runs the study in it, or it holds something else.
    """
    if not start.fresh:
        folder.check(resume=start.resume)
    _lock(folder.path, start, locks)
    if start.link is None:
        Journal.check_free(folder.path)
    if start.fresh and folder.set_aside():
        # The locks have gone with the folder of the earlier run.
        _lock(folder.path, start, locks)
    checkpoints = config.checkpoint.dir
    if checkpoints is not None and checkpoints.resolve() != folder.path.resolve():
        locks.enter_context(_server_lock(checkpoints, start))


def _lock(folder: Path, start: Start, locks: ExitStack) -> None:
    if start.link is None:
        locks.enter_context(StudyLock(folder / RUN_LOCK, PROGRAM))
    locks.enter_context(_server_lock(folder, start))


def _server_lock(folder: Path, start: Start) -> StudyLock:
    # A launcher starts a server only when it has killed the one before.
    return StudyLock(folder / SERVER_LOCK, PROGRAM, was_killed=start.link is not None)


def _require_descriptors(config: StudyConfig, ranks: Ranks) -> None:
    """See to it that each rank may open the files that it needs; the limits of nodes may differ."""
    said = ranks.gather(descriptors.lacking(make_plan(config).connections, "connections of simulations"))
    problem = ranks.broadcast(said and next(filter(None, said), ""))
    if problem:
        raise ConfigError(problem)


def simulation_cores(config: StudyConfig, start: Start) -> SimulationCores:
    """The cores that the simulations of this start take; none in a replay."""
    if start.replay is not None:
        return NO_SIMULATIONS
    # stream-launcher adds the environment of server.job to the server's, and not to that of the simulations.
    added = config.server.job.environment if start.link is not None else {}
    return SimulationCores.of(config, {name: value for name, value in os.environ.items() if name not in added})


def _require_memory(config: StudyConfig, ranks: Ranks) -> None:
    """Refuse samples for which a node has no memory, before they fill what it has."""
    said = ranks.gather(
        [of(config, ranks.size, ranks.local_size) for of in (memory_need.lacking, memory_need.shortage)]
    )
    problem, warning = ranks.broadcast(said and [next(filter(None, texts), "") for texts in zip(*said, strict=True)])
    if problem:
        raise ConfigError(problem)
    if warning and ranks.rank == 0:
        print(f"stream-server: WARNING: {warning}", file=sys.stderr, flush=True)


def leave_at(time_limit_s: float | None, began_s: float) -> float:
    """When to save and leave, with a margin for the last checkpoint and the end of the simulations."""
    if time_limit_s is None:
        return math.inf
    return began_s + time_limit_s - min(LARGEST_MARGIN_S, time_limit_s / 4)


class StudyRank:
    """One rank of a running study."""

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        folder: OutputFolder,
        continuation: Continuation,
        start: Start,
        stops: StopRequests,
    ) -> None:
        began_s = time.monotonic()
        study, restored = None, None
        if continuation.base is not None:
            study = continuation.study()
            restored = continuation.rank(config, ranks, is_replay=start.replay is not None)
        progress = Progress(ranks.size, length=Length.of(config, ranks.size), lr_clock=config.training.lr_clock)
        phases = Phases()
        self.cores = share_cores(ranks, simulation_cores(config, start))
        wait_passively(self.cores.nodes[ranks.node])
        self.closing = Closing(
            config=config,
            ranks=ranks,
            folder=folder,
            identity=continuation.identity,
            progress=progress,
            stops=stops,
            started_s=began_s - (0.0 if study is None else study["wall_s"]),
            is_outdated=continuation.is_outdated,
            cores=self.cores,
        )
        plan, design = make_plan(config), ParameterDesign(config)
        slots = parts.make_slots(config, plan, restored)
        buffer = Buffer(parts.make_policy(config, ranks.rank), slots, spare=plan.spare)
        source: Source
        if start.replay is None:
            source = Reception(
                config,
                ranks,
                folder,
                continuation.identity,
                plan=plan,
                design=design,
                buffer=buffer,
                restored=restored,
                roster_state=None if study is None else study["roster"],
                start=start,
            )
        else:
            source = ReplayFeed(config, ranks, start.replay, parameters=design.names, buffer=buffer, restored=restored)
        if study is not None and restored is not None:
            progress.load_state_dict(study["progress"])
            phases.load_state_dict(restored.state["phases_s"])
        self.parts = RankParts(
            config=config,
            ranks=ranks,
            folder=folder,
            continuation=continuation,
            study_state=study,
            restored=restored,
            design=design,
            buffer=buffer,
            source=source,
            progress=progress,
            phases=phases,
            stops=stops,
            cores=self.cores,
            leave_at_s=leave_at(start.time_limit_s, began_s),
            wall_s=self.closing.wall_s,
        )
        self.stage = "set-up"
        self.learning: Learning | None = None

    def run(self) -> int:
        """Train to the end and settle the account. Collective; returns the exit code of all ranks."""
        source = self.parts.source
        with ExitStack() as stack:
            try:
                learning = self.learning = SetUp(self.parts, stack).run(self._status)
                self.parts.stops.in_set_up = False
                self.stage = "training"
                learning.training.run()
                self.stage = "checkpoint"
                failpoint("server.before_last_checkpoint")
                is_saved = learning.checkpoints.take_last()
                self.stage = "end"
                failpoint("server.before_end")
                source.end(self.parts.stops)
                outcome = outcome_of(self.parts.stops, is_saved=is_saved)
            except Exception as error:
                outcome = self._leave(error)
        return self.closing.close(outcome, self._report(), simulations=self._simulations, learning=self.learning)

    def _leave(self, error: Exception) -> Outcome:
        """Make all ranks end because of `error`, in order if they can be reached, or else at once."""
        self.parts.stops.in_set_up = False
        ranks, continuation, progress = self.parts.ranks, self.parts.continuation, self.parts.progress
        where: Any = {"phase": self.stage, "batch": progress.batches if self.stage == "training" else None}
        # What is in the folder of a server that was replaced speaks of its successor.
        folder = None if continuation.is_outdated() else self.parts.folder.path
        agreed = leave_together(error, ranks, folder, **where)
        failure = (folder and Failure.read(folder)) or Failure.of(error, rank=ranks.rank, **where)
        if failure.phase == "set-up":
            # Also on a rank that was set up already: of a start that never trained, no rank has an account.
            self.learning = None
        if agreed is None or ranks.rank == 0:
            print(f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}", file=sys.stderr, flush=True)
        if agreed is None:
            self.closing.close_alone(failure, self._report(), simulations=self._simulations, learning=self.learning)
            ranks.abort(failure.exit_code)
        return self.closing.outcome_of_failure(failure)

    def _status(self, metrics: Metrics) -> Status:
        """How far the study is, for rank 0's display."""
        counts, num_samples = self.parts.source.counts()
        buffer, progress = self.parts.buffer, self.parts.progress
        return Status(
            simulations=counts,
            samples=num_samples,
            expected_samples=self._num_expected(sum(counts.values())),
            population=buffer.population,
            capacity=buffer.capacity,
            batches=progress.batches,
            loss=metrics.latest.get("train/loss"),
            validation_loss=metrics.latest.get("val/loss"),
            phases_s=self.parts.phases.seconds,
            fraction=progress.fraction,
            elapsed_s=progress.elapsed_s,
            awaited=self.parts.source.awaited,
            is_degraded=self.learning is not None and self.learning.checkpoints.counts.degraded,
        )

    def _num_expected(self, num_simulations: int) -> int | None:
        steps = self.parts.config.study.time_steps
        return None if steps is None else steps.num * num_simulations

    @property
    def _simulations(self) -> Simulations | None:
        return None if self.learning is None else self.parts.source.simulations

    def _report(self) -> RankReport:
        source, buffer, phases = self.parts.source, self.parts.buffer, self.parts.phases
        learning = self.learning
        phases.add("receive", source.receive_s)
        return rank_report(
            reception=None if learning is None else source.account,
            num_drawn=0 if learning is None else learning.stream.num_drawn,
            num_left=0 if learning is None else buffer.num_unseen + buffer.num_waiting + source.num_left,
            phases_s=phases.seconds,
            buffer_bytes=buffer.slots.sample_bytes * buffer.slots.num_slots,
            warnings=[*source.warnings, *([] if learning is None else learning.warnings)],
        )
