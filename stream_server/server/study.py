"""A study on one rank, from beginning to end: builds its parts, runs them, and settles the account."""

import math
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig, check_ranks
from stream_server.errors import ConfigError, NoUsableCheckpoint, RankLost
from stream_server.failpoints import failpoint
from stream_server.launcher.journal import Journal
from stream_server.server import parts
from stream_server.server.checkpoint.random_state import set_random_states
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.user_state import (
    callbacks_part,
    load_callbacks_state,
    load_user_state,
    user_part,
)
from stream_server.server.closing import Closing, outcome_of, rank_report
from stream_server.server.continuation import Continuation, by_rank_0, find_continuation
from stream_server.server.design import ParameterDesign
from stream_server.server.failure import Failure, leave_together
from stream_server.server.logs import Logs
from stream_server.server.output import OutputFolder
from stream_server.server.plain_state import read_state
from stream_server.server.plan import make_plan
from stream_server.server.ranks import Ranks, environment_rank, ranks_from_environment
from stream_server.server.reception import Reception
from stream_server.server.record.replay import ReplayFeed
from stream_server.server.report import Outcome, RankReport
from stream_server.server.sign_of_life import SignOfLife
from stream_server.server.snapshot import MODEL, Snapshots
from stream_server.server.source import Source
from stream_server.server.start import Start
from stream_server.server.stream import StreamDataset
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.behaviours import add_behaviours, validation_schedule
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.checkpoints import Checkpoints
from stream_server.server.training.display import Display, ProgressDisplay, Status
from stream_server.server.training.gauges import BufferGauge, Rationed, SamplesGauge, SpeedGauge
from stream_server.server.training.input_statistics import InputGauge
from stream_server.server.training.length import Length
from stream_server.server.training.limits import Limits
from stream_server.server.training.lockstep import come_together
from stream_server.server.training.loop import Training
from stream_server.server.training.memory import MemoryGauge
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.schedules import moment
from stream_server.server.training.step import Step
from stream_server.server.training.stop import StopReason, StopRequests
from stream_server.server.training.validation import Validation
from stream_server.server.training.validation_batches import HeldOutSamples
from stream_server.server.training.writers import open_own_writer, open_writers
from stream_server.server.user_class import load_server_class
from stream_server.server.watch import Watch

LARGEST_MARGIN_S = 120.0


def run_study(config: StudyConfig, start: Start) -> int:
    """Run a study on all ranks of this MPI job, or on one rank outside of MPI. Collective.

    Returns:
        The exit code, the same on all ranks.

    Raises:
        ConfigError: the study cannot begin; the same on all ranks.
        NoUsableCheckpoint: it cannot go on either; the same on all ranks.
    """
    rank = environment_rank() or 0
    with nullcontext() if start.alive is None else SignOfLife(start.alive, rank):
        ranks = ranks_from_environment()
        try:
            return _run(config, ranks, start)
        except (ConfigError, NoUsableCheckpoint):
            raise
        except BaseException:
            traceback.print_exc()
            ranks.abort(RankLost.exit_code)


def _run(config: StudyConfig, ranks: Ranks, start: Start) -> int:
    check_ranks(config, ranks.size)
    if start.replay is not None and config.checkpoint.record:
        raise ConfigError("checkpoint.record must be left out with --replay: these samples are recorded already")
    folder = OutputFolder(config.output_dir)
    if not start.fresh and by_rank_0(ranks, folder.is_finished):
        if ranks.rank == 0:
            print(f"{config.study.name} is finished: {folder.report} says how. --fresh starts it over.")
        return 0
    if start.link is None:
        by_rank_0(ranks, lambda: Journal.check_free(folder.path))
    by_rank_0(ranks, lambda: folder.prepare(config, fresh=start.fresh, resume=start.resume))
    continuation = find_continuation(config, ranks, folder)
    with Logs(folder.path, ranks.rank):
        return StudyRank(config, ranks, folder, continuation, start).run()


def leave_at(time_limit_s: float | None, began_s: float) -> float:
    """When to save and leave, with a margin for the last checkpoint and the end of the simulations."""
    if time_limit_s is None:
        return math.inf
    return began_s + time_limit_s - min(LARGEST_MARGIN_S, time_limit_s / 4)


class StudyRank:
    """One rank of a running study."""

    def __init__(
        self, config: StudyConfig, ranks: Ranks, folder: OutputFolder, continuation: Continuation, start: Start
    ) -> None:
        began_s = time.monotonic()
        plan = make_plan(config)
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.continuation = continuation
        self.leave_at_s = leave_at(start.time_limit_s, began_s)
        self.design = ParameterDesign(config)
        study, restored = None, None
        if continuation.base is not None:
            study = continuation.study()
            restored = continuation.rank(config, ranks, is_replay=start.replay is not None)
        self.study_state, self.restored = study, restored
        slots = parts.make_slots(config, plan, restored)
        self.buffer = Buffer(parts.make_policy(config, ranks.rank), slots, spare=plan.spare)
        self.source: Source
        if start.replay is None:
            self.source = Reception(
                config,
                ranks,
                folder,
                continuation.identity,
                plan=plan,
                design=self.design,
                buffer=self.buffer,
                restored=restored,
                roster_state=None if study is None else study["roster"],
                start=start,
            )
        else:
            self.source = ReplayFeed(
                config, ranks, start.replay, parameters=self.design.names, buffer=self.buffer, restored=restored
            )
        self.progress = Progress(ranks.size, length=Length.of(config, ranks.size), lr_clock=config.training.lr_clock)
        self.phases = Phases()
        self.stops = StopRequests()
        self.closing = Closing(
            config=config,
            ranks=ranks,
            folder=folder,
            identity=continuation.identity,
            progress=self.progress,
            stops=self.stops,
            started_s=began_s - (0.0 if study is None else study["wall_s"]),
            is_outdated=continuation.is_outdated,
        )
        if study is not None and restored is not None:
            self.progress.load_state_dict(study["progress"])
            self.phases.load_state_dict(restored.state["phases_s"])
        self.stage = "set-up"
        self.latest: Mapping[str, float] = {}
        self.stream: StreamDataset | None = None
        self.validation: Validation | None = None
        self.checkpoints: Checkpoints | None = None

    def run(self) -> int:
        """Train to the end and settle the account. Collective; returns the exit code of all ranks."""
        with ExitStack() as stack:
            try:
                training, checkpoints = self._set_up(stack)
                self.stage = "training"
                training.run()
                self.stage = "checkpoint"
                failpoint("server.before_last_checkpoint")
                is_saved = checkpoints.take_last()
                self.stage = "end"
                failpoint("server.before_end")
                self.source.end(self.stops)
                outcome = outcome_of(self.stops, is_saved=is_saved)
            except Exception as error:
                outcome = self._leave(error)
        simulations = self.source.simulations
        return self.closing.close(outcome, self._report(), simulations=simulations, validation=self.validation)

    def _set_up(self, stack: ExitStack) -> tuple[Training, Checkpoints]:
        ranks, is_first = self.ranks, self.ranks.rank == 0
        folder, batches = self.folder.metrics, self.progress.batches
        writers = open_writers(folder, batches, ranks.size) if is_first else ()
        own = open_own_writer(folder, ranks.rank, batches)
        metrics = stack.enter_context(Metrics(ranks, writers, own=own, progress=self.progress))
        self.latest = metrics.latest
        server = self._make_server(metrics)
        name = f"{type(server).__name__}.configure_callbacks"
        callbacks = Callbacks(server, call_user(name, server.configure_callbacks))
        step = stack.enter_context(server.make_step(ranks))
        if self.continuation.base is not None:
            self._restore_model(server, step, callbacks)
        # A state that cannot be saved is told now, and not after hours of training.
        user_part(server, allow_pickle=self.config.checkpoint.allow_pickle)
        callbacks_part(callbacks, allow_pickle=self.config.checkpoint.allow_pickle)
        failpoint("server.model_ready")
        # User code is done for now: a rank on which it raised ends the others here, before they open anything.
        come_together(ranks)
        source = stack.enter_context(self.source)
        saver = stack.enter_context(
            Saver(self.continuation.generations, epoch=self.continuation.identity.epoch, rank=ranks.rank)
        )
        callbacks.append(Watch(source, callbacks, stops=self.stops))
        speed = SpeedGauge(self.progress, self.phases)
        callbacks.append(speed)
        inputs = InputGauge(self.buffer, parameter_names=self.design.names, parameters_of=source.parameters_of)
        metrics.gauges += [
            *(BufferGauge(self.buffer), speed, MemoryGauge()),
            *(Rationed(SamplesGauge(self.buffer)), Rationed(inputs)),
        ]
        if is_first:
            display = stack.enter_context(Display(name=self.config.study.name))
            callbacks.append(ProgressDisplay(display, self._status))
        stack.enter_context(self.stops.on_signals())
        self.stream = stream = self._make_stream(server)
        self.validation = validation = self._make_validation(server, callbacks, step, metrics)
        snapshots = self._make_snapshots(server, step, stream, callbacks)
        checkpoints = self.checkpoints = self._make_checkpoints(saver, snapshots, step)
        limits = Limits(self.config.training, self.progress, self.stops, leave_at_s=self.leave_at_s)
        callbacks.prepend(limits)
        callbacks.prepend(checkpoints)
        add_behaviours(
            callbacks, self.config, progress=self.progress, metrics=metrics, phases=self.phases, validation=validation
        )
        if self.study_state is not None:
            callbacks.load_state_dict(self.study_state["callbacks"])
        if self.restored is not None:
            stream.num_drawn = self.restored.state["num_drawn"]
            if self.restored.is_own:
                # Last of all, since making the model and opening the doors may have used random numbers.
                set_random_states(self.restored.state["random"])
                step.load_random_state(self.restored.state["step"])
        training = Training(
            ranks=ranks,
            stream=stream,
            step=step,
            stops=self.stops,
            limits=limits,
            progress=self.progress,
            callbacks=callbacks,
            metrics=metrics,
            phases=self.phases,
            saves=checkpoints,
            needs_every_batch=self.config.training.uneven == "stop",
        )
        return training, checkpoints

    def _restore_model(self, server: StreamServer, step: Step, callbacks: Callbacks) -> None:
        folder = self.continuation.folder
        step.load_state_dict(read_state(folder / MODEL))
        load_user_state(folder, server, allow_pickle=self.config.checkpoint.allow_pickle)
        load_callbacks_state(folder, callbacks, allow_pickle=self.config.checkpoint.allow_pickle)

    def _make_snapshots(
        self, server: StreamServer, step: Step, stream: StreamDataset, callbacks: Callbacks
    ) -> Snapshots:
        return Snapshots(
            config=self.config,
            ranks=self.ranks,
            continuation=self.continuation,
            source=self.source,
            buffer=self.buffer,
            stream=stream,
            server=server,
            step=step,
            progress=self.progress,
            phases=self.phases,
            callbacks=callbacks,
            wall_s=self.closing.wall_s,
        )

    def _make_checkpoints(self, saver: Saver, snapshots: Snapshots, step: Step) -> Checkpoints:
        settings = self.config.checkpoint
        return Checkpoints(
            ranks=self.ranks,
            saver=saver,
            study=snapshots,
            newest=self.continuation.base_number,
            every_batches=moment(settings.every_batches, self.progress.expected_batches),
            every_s=settings.every_s,
            batches=lambda: self.progress.batches,
            at_boundary=lambda: step.at_boundary,
            phases=self.phases,
        )

    def _make_server(self, metrics: Metrics) -> StreamServer:
        server_class = load_server_class(self.config)
        server: StreamServer = call_user(server_class.__name__, server_class, self.config)
        server.enter_study(
            ranks=self.ranks,
            parameter_names=self.design.names,
            progress=self.progress,
            buffer=self.buffer,
            output_dir=self.folder.path,
            metrics=metrics,
            stops=self.stops,
        )
        return server

    def _make_stream(self, server: StreamServer) -> StreamDataset:
        return StreamDataset(
            self.buffer,
            server,
            parameters_of=self.source.parameters_of,
            batch_size=self.config.training.batch_size,
            phases=self.phases,
            before_draw=self.source.fill,
        )

    def _make_validation(self, server: StreamServer, callbacks: Callbacks, step: Step, metrics: Metrics) -> Validation:
        source, settings = self.source, self.config.validation
        return Validation(
            server,
            self.ranks,
            callbacks,
            step,
            held_out=HeldOutSamples(store=source.validation_store, parameters_of=source.parameters_of),
            batch_size=settings.batch_size,
            progress=self.progress,
            metrics=metrics,
            schedule=validation_schedule(self.config, self.progress),
            phases=self.phases,
            must_leave=lambda: self.stops.pending is StopReason.SAVED,
        )

    def _leave(self, error: Exception) -> Outcome:
        """Make all ranks end because of `error`, in order if they can be reached, or else at once."""
        where: Any = {"phase": self.stage, "batch": self.progress.batches if self.stage == "training" else None}
        # What is in the folder of a server that was replaced speaks of its successor.
        folder = None if self.continuation.is_outdated() else self.folder.path
        agreed = leave_together(error, self.ranks, folder, **where)
        failure = (folder and Failure.read(folder)) or Failure.of(error, rank=self.ranks.rank, **where)
        if agreed is None or self.ranks.rank == 0:
            print(f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}", file=sys.stderr, flush=True)
        if agreed is None:
            simulations = self.source.simulations
            self.closing.close_alone(failure, self._report(), simulations=simulations, validation=self.validation)
            self.ranks.abort(failure.exit_code)
        return self.closing.outcome_of_failure(failure)

    def _status(self) -> Status:
        """How far the study is, for rank 0's display."""
        counts, num_samples = self.source.counts()
        return Status(
            simulations=counts,
            samples=num_samples,
            expected_samples=self._num_expected(sum(counts.values())),
            population=self.buffer.population,
            capacity=self.buffer.capacity,
            batches=self.progress.batches,
            loss=self.latest.get("train/loss"),
            validation_loss=self.latest.get("val/loss"),
            phases_s=self.phases.seconds,
            fraction=self.progress.fraction,
            elapsed_s=self.progress.elapsed_s,
            is_degraded=self.checkpoints is not None and self.checkpoints.counts.degraded,
        )

    def _num_expected(self, num_simulations: int) -> int | None:
        steps = self.config.study.time_steps
        return None if steps is None else steps.num * num_simulations

    def _report(self) -> RankReport:
        source = self.source
        self.phases.add("receive", source.receive_s)
        return rank_report(
            reception=source.account,
            num_drawn=0 if self.stream is None else self.stream.num_drawn,
            num_left=self.buffer.num_unseen + self.buffer.num_waiting + source.num_left,
            phases_s=self.phases.seconds,
            buffer_bytes=self.buffer.slots.sample_bytes * self.buffer.slots.num_slots,
            warnings=[*source.warnings, *([] if self.checkpoints is None else self.checkpoints.warnings)],
        )
