"""The training of one rank, put together from its pieces: for a study and for commands that try or measure one.

Why: docs/decisions/0038-order-of-callbacks.md
"""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.errors import TooManyFailures, UserCodeError
from stream_server.machine.screen import print_escaped
from stream_server.messages import launcher_link
from stream_server.server.intake import mailbox
from stream_server.server.intake.source import SampleSource
from stream_server.server.metrics.metric_objects import TrainedMetrics
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run.build import window_shape
from stream_server.server.steering.feedback import Feedback
from stream_server.server.training.control_round import NoSaves
from stream_server.server.training.loader_samples import LoaderSamples
from stream_server.server.training.loader_stream import LoaderStream
from stream_server.server.training.loop import Training, TrainingLimits
from stream_server.server.training.monitoring.batch_rows import BatchRows
from stream_server.server.training.monitoring.gauges import Logging, log_schedule
from stream_server.server.training.monitoring.unsaved_arrays import UnsavedArrays
from stream_server.server.training.monitoring.untrained_parameters import UntrainedParameters
from stream_server.server.training.rounds import Rounds
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.validation.rollout import Rollouts
from stream_server.server.training.validation.validation import Validation
from stream_server.server.training.validation.validation_batches import HeldOutSamples, Observe, choice
from stream_server.server.training.validation.validation_record import ValidationRecord
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import LearningRateCallback, Step, framework_of
from stream_server.server.user.global_generators import seeded_generators
from stream_server.server.user.stream_server import RUNNING, StreamServer
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.server.checkpoint.agreement import CheckpointAgreement

T = TypeVar("T")

log = logging.getLogger(__name__)


class Composition:
    """Builds the training of one rank. Main thread; every method is collective.

    A study, a trial (`--fast-dev-run`) and an evaluation (`--evaluate`) call the methods in the order in
    which they stand here. An evaluation makes no stream and no training. They differ in what they pass: the class, the
    writers of metrics, the source of samples, checkpoints or none, and further callbacks. What was saved is restored
    once the step is made.

    Args:
        output_dir: the user's class may write into it.
        parameter_names: those of a simulation, in the order of study.json.
        buffer: the samples that wait to be drawn.
        num_threads: how many threads this rank computes with.
        stops, phases: taken from the study, or new ones.
    """

    server: StreamServer
    callbacks: Callbacks
    step: Step
    stream: BatchStream
    validation: Validation
    rates: Sequence[LearningRateCallback] = ()

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        *,
        output_dir: Path,
        parameter_names: Sequence[str],
        progress: Progress,
        buffer: Buffer,
        num_threads: int,
        stops: StopRequests | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.output_dir = output_dir
        self.parameter_names = tuple(parameter_names)
        self.progress = progress
        self.buffer = buffer
        self.num_threads = num_threads
        self.stops = stops or StopRequests()
        self.phases = phases or Phases()
        self.metrics = Metrics(ranks, progress=progress)

    def make_server(
        self,
        server_class: type[StreamServer],
        stack: ExitStack,
        metrics: Metrics | None = None,
    ) -> None:
        """Call the user's class. What it logs goes to these metrics, until `stack` ends; by default to no writer.

        Raises:
            UserCodeError: the class raised.
        """
        self.metrics = stack.enter_context(metrics or self.metrics)
        name, place = server_class.__name__, (self.config, self.ranks.rank, self.ranks.local_rank)
        call_user(f"{name}.setup_environment", lambda: server_class.setup_environment(*place))
        self.server = call_user(name, server_class, self.config)
        self.server.enter_study(self.ranks, self.parameter_names)
        self.server.hold_attributes(
            progress=self.progress,
            buffer=self.buffer,
            output_dir=self.output_dir,
            phases=self.phases,
            num_threads=self.num_threads,
            _metrics=self.metrics,
            _stops=self.stops,
        )
        RUNNING.append(self.server)
        stack.callback(RUNNING.remove, self.server)

    def make_step(self, stack: ExitStack, callbacks: Iterable[Callback] = ()) -> None:
        """Make the model, until `stack` ends; the server and these callbacks of the user hear of all events.

        Raises:
            UserCodeError: `prepare_training_attributes` raised, what it returned cannot be trained, or user code is to
                hear of gradients that the study does not make.
        """
        self.callbacks = Callbacks(self.server, callbacks)
        if self.callbacks.hears("on_gradients"):
            if not (framework_of(self.server).trains_model and self.server.automatic_optimization):
                raise UserCodeError(
                    f"on_gradients is called where the study makes the gradients, and {type(self.server).__name__} "
                    "makes them itself: change them in training_step, before the step of the optimizer"
                )
            self.server.hold_attributes(tell_gradients=partial(self.callbacks.tell, "on_gradients"))
        # As torch's, so that the order of features, say, is the same on all ranks, at each start and in `Run.model`.
        with seeded_generators(self.config.study.seed):
            self.step = stack.enter_context(framework_of(self.server).make_step(self.server, self.ranks))

    def make_stream(self, source: SampleSource, stack: ExitStack) -> None:
        """Make the batches that this rank draws from its buffer, until `stack` ends.

        Raises:
            UserCodeError: `train_dataloader` raised, or gave something else than a loader of the stream.
        """
        options: dict[str, Any] = {
            "parameters_of": source.parameters_of,
            "batch_size": self.config.training.batch_size,
            "phases": self.phases,
            "before_draw": source.before_draw,
            "prefetch": self.config.training.prefetch,
            "stage": self.step.stage,
        }
        samples = LoaderSamples()
        loader = call_user(f"{type(self.server).__name__}.train_dataloader", self.server.make_loader, samples)
        if loader is None:
            stream: BatchStream = BatchStream(self.buffer, self.server, **options)
        else:
            stream = LoaderStream(self.buffer, self.server, loader, samples, **options)
        self.stream = stack.enter_context(stream)

    def held_out(self, source: SampleSource) -> HeldOutSamples:
        return HeldOutSamples(
            store=source.validation_store,
            parameters_of=source.parameters_of,
            window_shape=window_shape(self.config),
            statics=self.buffer.slots.statics,
        )

    def make_validation(
        self,
        held_out: HeldOutSamples,
        *,
        schedules: Mapping[str, Schedule] | None = None,
        must_leave: Callable[[], bool] = lambda: False,
        save_before: Callable[[], None] = lambda: None,
        quiesce: Callable[[], None] = lambda: None,
        record: ValidationRecord | None = None,
        observe: Observe | None = None,
    ) -> Validation:
        """Make the validation; without `schedules` it comes once, at the end of the training."""
        self.validation = Validation(
            self.server,
            self.ranks,
            self.callbacks,
            self.step,
            # Rollouts are those of whole simulations.
            held_out=replace(held_out, chosen=choice(self.config)),
            settings=self.config.validation,
            progress=self.progress,
            metrics=self.metrics,
            schedules=schedules,
            phases=self.phases,
            must_leave=must_leave,
            save_before=save_before,
            quiesce=quiesce,
            record=record,
            rollouts=self._make_rollouts(held_out),
            observe=observe,
        )
        return self.validation

    def _make_rollouts(self, held_out: HeldOutSamples) -> Rollouts | None:
        settings = self.config.validation.rollout
        if settings is None or held_out.window_shape is None:
            return None
        return Rollouts(
            self.server,
            self.ranks,
            self.step,
            settings=settings,
            shape=held_out.window_shape,
            held_out=held_out,
            batch_size=self.config.validation.batch_size,
        )

    def make_training(
        self,
        source: SampleSource,
        *,
        log_every: int | float | None,
        checkpoints: "CheckpointAgreement | None" = None,
        leave_at_s: float = math.inf,
        before_user: Sequence[Callback] = (),
        before_logging: Sequence[Callback] = (),
        after_logging: Sequence[Callback] = (),
        feedback: Feedback | None = None,
        rounds: Rounds | None = None,
    ) -> Training:
        """Make the training, and put the built-in callbacks around the user's.

        Args:
            log_every: metrics are written every this many batches; a float is a fraction of the run, None the default.
            leave_at_s: the monotonic time at which to save and leave.
            before_user: called for each event after the built-in callbacks that come before the user's.
            before_logging, after_logging: called after the user's callbacks.
            feedback: tells what suggests parameters of the losses; None if nothing does.
            rounds: those of `study.rounds`, if there are any.
        """
        normalization = self.server.normalization
        limits = TrainingLimits(self.config.training, self.progress, self.stops, leave_at_s=leave_at_s)
        schedule = log_schedule(log_every, is_paced=log_every is None and self.config.training.is_log_paced)
        logging = Logging(self.metrics, schedule=schedule, progress=self.progress, phases=self.phases)
        self.rates = rates = self.step.learning_rates()
        self.metrics.gauges += [TrainedMetrics(self.server, self.ranks), *rates]
        self.untrained = UntrainedParameters(self.step)
        self.unsaved = UnsavedArrays(self.step, self.callbacks)
        self.batch_rows = BatchRows()
        self.callbacks.surround(
            before=[
                # A checkpoint of the same round has the validation in it.
                normalization,
                self.validation,
                *optional(checkpoints),
                limits,
                SourceEvents(source.events, self.callbacks, stops=self.stops),
                *before_user,
            ],
            # The learning rates come after the logging, which writes those that the step had.
            after=[*optional(feedback), *before_logging, logging, *rates, self.untrained, self.unsaved, *after_logging],
        )
        return Training(
            ranks=self.ranks,
            stream=self.stream,
            step=self.step,
            stops=self.stops,
            limits=limits,
            progress=self.progress,
            callbacks=self.callbacks,
            metrics=self.metrics,
            phases=self.phases,
            saves=checkpoints or NoSaves(),
            normalization=normalization,
            needs_every_batch=self.config.training.uneven == "stop",
            num_missing=lambda: source.num_missing,
            rounds=rounds,
            note_losses=None if feedback is None else feedback.scores.note,
            note_batch=self.batch_rows.note,
        )


class SourceEvents(Callback):
    """Hands on, in every round, the events since the last one, which `look` gives. Main thread."""

    def __init__(
        self, look: Callable[[], Iterable[mailbox.Event]], callbacks: Callbacks, *, stops: StopRequests
    ) -> None:
        self._look = look
        self._callbacks = callbacks
        self._stops = stops

    def on_round(self, server: Any) -> None:
        """Hand on all events.

        Raises:
            TooManyFailures: the simulations cannot be made to run.
            RankLost: the launcher cannot be kept alive.
            UserCodeError: a user's callback raised.
        """
        for event in self._look():
            self._hand_on(event)

    def on_train_end(self, server: Any) -> None:
        # What came with the end of the stream, after which there is no round.
        for event in self._look():
            if isinstance(event, mailbox.SimulationFinished | mailbox.ReceptionEnded | mailbox.FinishAsked):
                self._hand_on(event)

    def _hand_on(self, event: mailbox.Event) -> None:
        match event:
            case mailbox.SimulationFinished(simulation=simulation):
                self._callbacks.tell("on_simulation_finished", simulation)
            case mailbox.ReceptionEnded():
                self._callbacks.tell("on_reception_end")
            case mailbox.SimulationsFailed(text=text):
                raise TooManyFailures(text)
            case mailbox.FromLauncher(message=launcher_link.Leave(reason=reason)) | mailbox.StopAsked(reason=reason):
                self._stops.order(reason)
            case mailbox.FinishAsked(reason=reason):
                # Rank 0 has the order from the operator, and once more from the launcher that follows it.
                if self._stops.text != reason:
                    log.info("%s", reason)
                    print_escaped(reason, sys.stderr)
                self._stops.note(reason)
            case mailbox.FromLauncher(message=launcher_link.Failed() as failed):
                where = f"; its log: {failed.log}" if failed.log else ""
                who = f"simulation {failed.simulation}, attempt {failed.attempt}"
                log.warning("%s failed: %s%s", who, failed.explanation, where)
            case mailbox.FromLauncher(
                message=launcher_link.FailedLater(simulation=simulation, reason=reason, log=path)
            ):
                log.warning("simulation %d failed after its last time step: %s; its log: %s", simulation, reason, path)
            case mailbox.SimulationWarning(text=text) | mailbox.FromLauncher(message=launcher_link.HeldBack(text=text)):
                log.warning("%s", text)
            case mailbox.LauncherSilence(is_over=True):
                log.warning("stream-launcher answers again")
            case mailbox.LauncherSilence():
                log.warning(
                    "stream-launcher does not answer any more: no simulation is started, and none that fails is tried "
                    "again. If it was killed, start it by the same command: it takes this server over"
                )
            case _:
                return


def optional(part: T | None) -> list[T]:
    return [] if part is None else [part]
