"""Sets up the training of one rank: the user's class, the model, and all that happens beside the steps."""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.best_folder import BEST
from stream_server.server.checkpoint.part import Part
from stream_server.server.checkpoint.random_state import seed_of, seed_random_states, set_random_states
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.user_state import (
    callbacks_part,
    load_callbacks_state,
    load_user_state,
    user_part,
)
from stream_server.server.learning import Learning
from stream_server.server.model_export import ModelExport
from stream_server.server.normalization import Normalization
from stream_server.server.parts import NOISE_STREAM
from stream_server.server.plain_state import read_state
from stream_server.server.rank_parts import RankParts
from stream_server.server.saved_model import model_parts
from stream_server.server.snapshot import MODEL, Snapshots
from stream_server.server.stream import StreamDataset
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.best_models import BestModels
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.checkpoints import Checkpoints, Milestones
from stream_server.server.training.display import Display, ProgressDisplay, Status
from stream_server.server.training.early_stopping import EarlyStopping
from stream_server.server.training.gauges import BufferGauge, Rationed, SamplesGauge, SpeedGauge
from stream_server.server.training.input_statistics import InputGauge
from stream_server.server.training.length import Length
from stream_server.server.training.limits import Limits
from stream_server.server.training.lockstep import come_together
from stream_server.server.training.log_points import Logging
from stream_server.server.training.log_record import Writer
from stream_server.server.training.loop import Training
from stream_server.server.training.memory import MemoryGauge
from stream_server.server.training.metrics import Gauge, Metrics
from stream_server.server.training.schedules import Schedule, moment
from stream_server.server.training.step import Step
from stream_server.server.training.stop import StopReason
from stream_server.server.training.validation import Validation
from stream_server.server.training.validation_batches import HeldOutSamples
from stream_server.server.training.writers import open_own_writer, open_writers
from stream_server.server.user_class import load_server_class
from stream_server.server.warm_start import warm_start
from stream_server.server.watch import Watch

T = TypeVar("T")

log = logging.getLogger(__name__)


class SetUp:
    """Builds the training of a rank out of its parts; main thread, collective. `stack` takes all down again."""

    def __init__(self, parts: RankParts, stack: ExitStack) -> None:
        self._parts = parts
        self._stack = stack
        self._allow_pickle = parts.config.checkpoint.allow_pickle

    def run(self, status: Callable[[Metrics], Status]) -> Learning:
        """Call the user's class, restore what was saved, and open the doors to the simulations.

        `status` is what rank 0 shows, given what was logged.

        Raises:
            StreamServerError: the user's class raised, here or on another rank, or what was saved does not fit.
        """
        parts, stack = self._parts, self._stack
        counted = parts.source.count(stack)
        if counted is not None:
            parts.progress.length = Length.of(parts.config, parts.ranks.size, counted)
        stopping = self._make_stopping()
        metrics = self._make_metrics(stopping)
        server = self._make_server(metrics)
        name = f"{type(server).__name__}.configure_callbacks"
        callbacks = Callbacks(server, call_user(name, server.configure_callbacks))
        step = stack.enter_context(server.make_step(parts.ranks))
        self._restore_model(server, step, callbacks)
        # A state that cannot be saved is told now, and not after hours of training.
        user_part(server, allow_pickle=self._allow_pickle)
        callbacks_part(callbacks, allow_pickle=self._allow_pickle)
        failpoint("server.model_ready")
        self._tell_length()
        self._tell_cores()
        # User code is done for now: a rank on which it raised ends the others here, before they open anything.
        come_together(parts.ranks)
        # Before there is a port: whoever floods it may take all file descriptors.
        display = self._make_display(lambda: status(metrics))
        stack.enter_context(parts.source)
        saver = stack.enter_context(self._make_saver())
        stream = self._make_stream(server)
        checkpoints = self._make_checkpoints(saver, self._make_snapshots(server, step, stream, callbacks), step)
        limits = Limits(parts.config.training, parts.progress, parts.stops, leave_at_s=parts.leave_at_s)
        validation = self._make_validation(server, callbacks, step, metrics, checkpoints)
        best_models = self._make_best_models(server, step)
        export = ModelExport(parts.folder.model, step=step, config=parts.config, normalization=server.normalization)
        rates = server.make_learning_rates()
        speed = SpeedGauge(parts.progress, parts.phases)
        metrics.gauges += [*self._make_gauges(), speed, *rates]
        callbacks.surround(
            before=[
                # A checkpoint of the same round has the validation in it.
                server.normalization,
                validation,
                checkpoints,
                limits,
                Watch(parts.source, callbacks, stops=parts.stops),
                speed,
            ],
            after=[
                *optional(best_models),
                *optional(stopping),
                self._make_logging(metrics),
                # After the logging, which tells the rates that the step had.
                *rates,
                *display,
                export,
            ],
        )
        self._restore_training(stream, step, callbacks, server.normalization)
        training = Training(
            ranks=parts.ranks,
            stream=stream,
            step=step,
            stops=parts.stops,
            limits=limits,
            progress=parts.progress,
            callbacks=callbacks,
            metrics=metrics,
            phases=parts.phases,
            saves=checkpoints,
            normalization=server.normalization,
            needs_every_batch=parts.config.training.uneven == "stop",
            num_missing=lambda: parts.source.num_missing,
        )
        return Learning(
            training=training,
            stream=stream,
            validation=validation,
            checkpoints=checkpoints,
            best_models=best_models,
            export=export,
        )

    def _tell_length(self) -> None:
        """Say at the start if nobody can know how long the training will be."""
        progress, clock = self._parts.progress, self._parts.config.training.lr_clock
        if self._parts.ranks.rank == 0 and progress.expected_batches is None:
            text = f"the number of batches is not known in advance; learning-rate schedules count {clock}"
            log.info("%s", text)
            print(text, file=sys.stderr, flush=True)

    def _tell_cores(self) -> None:
        """Say at the start how the cores are shared out, and if a restart computes with other numbers of threads."""
        cores, study = self._parts.cores, self._parts.study_state
        if self._parts.ranks.rank != 0:
            return
        for text in (f"cores: {cores}", *cores.warnings):
            log.info("%s", text)
            print(text, file=sys.stderr, flush=True)
        if study is not None and (change := cores.change_since(study.get("threads", cores.threads))):
            log.warning("%s", change)

    def _make_stopping(self) -> EarlyStopping | None:
        settings, stops = self._parts.config.training.early_stop, self._parts.stops
        if settings is None:
            return None
        return EarlyStopping(settings, stop=lambda reason: stops.request(StopReason.EARLY_STOP, reason))

    def _make_metrics(self, stopping: EarlyStopping | None) -> Metrics:
        parts = self._parts
        folder, batches, ranks = parts.folder.metrics, parts.progress.batches, parts.ranks
        writers: list[Writer] = []
        if ranks.rank == 0:
            # A checkpoint that was committed before a validation has none of its values.
            history = [] if parts.study_state is None else parts.study_state["callbacks"]["Validation"]["history"]
            is_validated = bool(history) and history[-1]["batch"] == batches
            writers = open_writers(folder, batches, ranks.size, is_validated=is_validated)
        if stopping is not None and stopping.is_writer and ranks.rank == 0:
            writers.append(stopping)
        own = open_own_writer(folder, ranks.rank, batches)
        return self._stack.enter_context(Metrics(ranks, writers, own=own, progress=parts.progress))

    def _make_server(self, metrics: Metrics) -> StreamServer:
        parts = self._parts
        server_class = load_server_class(parts.config)
        server: StreamServer = call_user(server_class.__name__, server_class, parts.config)
        server.enter_study(
            ranks=parts.ranks,
            parameter_names=parts.design.names,
            progress=parts.progress,
            buffer=parts.buffer,
            output_dir=parts.folder.path,
            metrics=metrics,
            stops=parts.stops,
            phases=parts.phases,
            num_threads=parts.cores.threads[parts.ranks.rank],
        )
        return server

    def _restore_model(self, server: StreamServer, step: Step, callbacks: Callbacks) -> None:
        continuation, config = self._parts.continuation, self._parts.config
        if continuation.base is not None:
            folder = continuation.folder
            step.load_state_dict(read_state(folder / MODEL))
            load_user_state(folder, server, allow_pickle=self._allow_pickle)
            load_callbacks_state(folder, callbacks, allow_pickle=self._allow_pickle)
        elif config.load is not None:
            log.info("%s", warm_start(config, server, step, server.normalization))

    def _make_saver(self) -> Saver:
        continuation = self._parts.continuation
        return Saver(continuation.generations, epoch=continuation.identity.epoch, rank=self._parts.ranks.rank)

    def _make_stream(self, server: StreamServer) -> StreamDataset:
        parts = self._parts
        return StreamDataset(
            parts.buffer,
            server,
            parameters_of=parts.source.parameters_of,
            batch_size=parts.config.training.batch_size,
            phases=parts.phases,
            before_draw=parts.source.fill,
        )

    def _make_snapshots(
        self, server: StreamServer, step: Step, stream: StreamDataset, callbacks: Callbacks
    ) -> Snapshots:
        parts = self._parts
        return Snapshots(
            config=parts.config,
            ranks=parts.ranks,
            continuation=parts.continuation,
            source=parts.source,
            buffer=parts.buffer,
            stream=stream,
            server=server,
            step=step,
            progress=parts.progress,
            phases=parts.phases,
            callbacks=callbacks,
            wall_s=parts.wall_s,
            threads=parts.cores.threads,
        )

    def _make_checkpoints(self, saver: Saver, snapshots: Snapshots, step: Step) -> Checkpoints:
        parts = self._parts
        settings, progress = parts.config.checkpoint, parts.progress
        return Checkpoints(
            ranks=parts.ranks,
            saver=saver,
            study=snapshots,
            newest=parts.continuation.base_number,
            every_batches=moment(settings.every_batches, progress.expected_batches),
            every_s=settings.every_s,
            batches=lambda: progress.batches,
            at_boundary=lambda: step.at_boundary,
            phases=parts.phases,
            milestones=self._make_milestones(),
        )

    def _make_milestones(self) -> Milestones | None:
        settings = self._parts.config.checkpoint
        if settings.keep_every is None and not settings.keep_at:
            return None
        return Milestones(Schedule(every=settings.keep_every, at=settings.keep_at), self._parts.progress)

    def _make_validation(
        self, server: StreamServer, callbacks: Callbacks, step: Step, metrics: Metrics, checkpoints: Checkpoints
    ) -> Validation:
        parts = self._parts
        source, settings, stops = parts.source, parts.config.validation, parts.stops
        return Validation(
            server,
            parts.ranks,
            callbacks,
            step,
            held_out=HeldOutSamples(store=source.validation_store, parameters_of=source.parameters_of),
            batch_size=settings.batch_size,
            progress=parts.progress,
            metrics=metrics,
            schedule=Schedule(every=settings.every_batches, every_s=settings.every_s, at=settings.at),
            phases=parts.phases,
            must_leave=lambda: stops.pending is StopReason.SAVED or time.monotonic() >= parts.leave_at_s,
            save_before=checkpoints.take_before_validation if settings.save_before else lambda: None,
        )

    def _make_best_models(self, server: StreamServer, step: Step) -> BestModels | None:
        parts = self._parts
        if not parts.config.checkpoint.keep_best:
            return None

        def capture() -> list[Part]:
            behaviours = {Normalization.__name__: server.normalization.state_dict()}
            return model_parts(server, step, behaviours=behaviours, allow_pickle=self._allow_pickle)

        folder = parts.continuation.generations.folder / BEST
        return BestModels(folder, step, parts.config.checkpoint, capture=capture, phases=parts.phases)

    def _make_gauges(self) -> list[Gauge]:
        parts = self._parts
        names, buffer = parts.design.names, parts.buffer
        inputs = InputGauge(buffer, parameter_names=names, parameters_of=parts.source.parameters_of)
        return [BufferGauge(buffer), MemoryGauge(), Rationed(SamplesGauge(buffer)), Rationed(inputs)]

    def _make_logging(self, metrics: Metrics) -> Logging:
        parts = self._parts
        schedule = Schedule(every=parts.config.training.log_every_batches)
        return Logging(metrics, schedule=schedule, progress=parts.progress, phases=parts.phases)

    def _make_display(self, status: Callable[[], Status]) -> list[ProgressDisplay]:
        if self._parts.ranks.rank != 0:
            return []
        display = self._stack.enter_context(Display(name=self._parts.config.study.name))
        return [ProgressDisplay(display, status)]

    def _restore_training(
        self, stream: StreamDataset, step: Step, callbacks: Callbacks, normalization: Normalization
    ) -> None:
        study, restored = self._parts.study_state, self._parts.restored
        if study is None or restored is None:
            return
        callbacks.load_state_dict(study["callbacks"])
        normalization.load_rank_states(restored.state["normalization"])
        stream.num_drawn = restored.state["num_drawn"]
        # Last of all, since making the model and opening the doors may have used random numbers.
        self._begin_random_streams_anew(step)
        if restored.is_own:
            set_random_states(restored.state["random"])
            step.load_random_state(restored.state["step"])

    def _begin_random_streams_anew(self, step: Step) -> None:
        """For generators whose states are not taken back: on other ranks or devices there are none, or too few."""
        config, ranks = self._parts.config, self._parts.ranks
        seed = seed_of((*self._parts.continuation.seed(config, NOISE_STREAM, ranks.size), ranks.rank))
        seed_random_states(seed)
        step.seed_random_state(seed)


def optional(it: T | None) -> list[T]:
    """A list of what is there."""
    return [] if it is None else [it]
