"""The set-up of one rank of a study: what it continues, its source of samples, and all that surrounds its training."""

import logging
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from stream_server.buffers import Buffer, num_slots_to_load
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.failpoints import failpoint
from stream_server.machine.garbage import keep_modules
from stream_server.server.checkpoint.agreement import CheckpointAgreement, Milestones
from stream_server.server.checkpoint.capture import StudyCapture
from stream_server.server.checkpoint.continuation import Continuation
from stream_server.server.checkpoint.random_states import RandomStates, seed_random_states
from stream_server.server.checkpoint.restore import Part
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.user_state import load_learned, load_rank_states, rank_files, user_files
from stream_server.server.intake.source import Source
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Gauge, Metrics
from stream_server.server.metrics.writers import open_own_writer, open_writers
from stream_server.server.model.best_models import BEST, BestModels
from stream_server.server.model.model_export import ModelExport
from stream_server.server.model.saved_model import model_files
from stream_server.server.model.warm_start import NewestWeights, warm_start
from stream_server.server.progress.changes import Changes
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.reception.reception import Reception
from stream_server.server.replay.source import ReplaySource
from stream_server.server.run.build import NOISE_STREAM, allowed_failures, make_buffer, make_policy, scarcity
from stream_server.server.run.cores import share_cores, simulation_cores, wait_passively
from stream_server.server.run.output import OutputFolder
from stream_server.server.run.plan import RankPlan, make_plan
from stream_server.server.run.start import StartOptions
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.steering.feedback import Feedback
from stream_server.server.study.composition import Composition, optional
from stream_server.server.study.display import Display
from stream_server.server.study.prometheus import StudyCollector
from stream_server.server.study.status import StatusBoard
from stream_server.server.training.control_round import barrier
from stream_server.server.training.loop import Training
from stream_server.server.training.monitoring.early_stopping import EarlyStopping
from stream_server.server.training.monitoring.finite_losses import FiniteLosses
from stream_server.server.training.monitoring.gauges import (
    BufferGauge,
    InputGauge,
    MemoryGauge,
    RateLimited,
    SamplesGauge,
    SpeedGauge,
    log_schedule,
)
from stream_server.server.training.rounds import Rounds
from stream_server.server.training.validation.validation import names_validated
from stream_server.server.training.validation.validation_batches import Observe
from stream_server.server.training.validation.validation_record import held_out_record
from stream_server.server.user.components import load_server_class, make_callbacks
from stream_server.server.user.framework import framework_of
from stream_server.server.user.global_generators import seed_generators
from stream_server.server.user.normalization import Normalization
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import damage_in

UNPROTECTED = (
    "network.security is none: anybody who reaches the ports of this study can read and change what is sent over TCP, "
    "and can send data of their own"
)
DRAWS = "training.draws_per_sample"

log = logging.getLogger(__name__)


class StudyRank(Composition):
    """One rank of a study, built from its parts. Main thread; collective.

    Creating it reads the checkpoint that is continued and makes what needs no user code; `open` does the rest.

    Attributes:
        saved: the state of the study in that checkpoint, None in a study that begins.
        restored: the part of this rank in it.
        changes: what this and earlier restarts have changed.
        parts: what a checkpoint has of the training of this rank, beside what it has received.
        is_set_up: everything was built, and nothing has failed before the training.
        is_online: it trains while its simulations run.
        started_s: when the study started on the monotonic clock, had all its incarnations followed each other.
    """

    checkpoints: CheckpointAgreement
    parts: dict[str, Part]
    export: ModelExport | None = None
    best_models: BestModels | None = None
    stopping: EarlyStopping | None = None
    display: Display | None = None
    losses: FiniteLosses | None = None
    is_set_up = False

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        folder: OutputFolder,
        continuation: Continuation,
        start: StartOptions,
        stops: StopRequests,
        collector: StudyCollector,
    ) -> None:
        self._began_s = time.monotonic()
        self.folder = folder
        self.collector = collector
        self.is_replay = start.replay is not None
        self.is_online = not self.is_replay and not config.offline.write_files
        self.continuation = continuation
        self.saved, self.restored, self.changes = None, None, Changes()
        if continuation.base is not None:
            self.saved = continuation.study()
            self.changes = Changes(continuation.base.batches)
            # A checkpoint of an earlier version has none.
            with damage_in("changes"):
                self.changes.load_state_dict(self.saved.get("changes", []))
            self.restored = continuation.rank(config, ranks, is_replay=self.is_replay)
            for path, before, now, rule in continuation.changed_settings(self.saved, config):
                self.changes.note(path, before=before, now=now, source=start.source_of(path), note=rule.reason)
        self.cores = share_cores(ranks, simulation_cores(config, start))
        wait_passively(self.cores.nodes[ranks.node])
        self.started_s = self._began_s - (0.0 if self.saved is None else self.saved["wall_s"])
        self.leave_at_s = start.leave_at_s
        plan, design = make_plan(config), ParameterDesign(config)
        buffer = self._make_buffer(config, ranks, plan)
        length = TrainingLength.of(config, ranks.size, draws_per_sample=buffer.policy.draws_per_sample)
        super().__init__(
            config,
            ranks,
            output_dir=folder.path,
            parameter_names=design.names,
            progress=Progress(ranks.size, length=length, lr_clock=config.training.lr_clock),
            buffer=buffer,
            num_threads=self.cores.threads[ranks.rank],
            stops=stops,
            phases=Phases(),
        )
        self.source = self._make_source(start, plan, design)
        if self.saved is not None and self.restored is not None:
            self.progress.load_state_dict(self.saved["progress"])
            for change in self.changes.new:
                if change.name == DRAWS:
                    self.restored.bound_draws(buffer.policy, change.before, change.now)
                    self.progress.change_draws(change.now)
            # Now, so that a study that fails in its set-up reports those of earlier incarnations, too.
            self.restored.load({"phases": self.phases})

    def wall_s(self) -> float:
        """The seconds for which the study has run, all its incarnations together."""
        return time.monotonic() - self.started_s

    @property
    def unprotected(self) -> list[str]:
        """The sockets that the study leaves open to strangers; none in a replay, which has no sockets."""
        return [UNPROTECTED] if self.config.network.security == "none" and not self.is_replay else []

    @property
    def warnings(self) -> list[str]:
        """Failures on this rank that did not end the study; none before it is set up."""
        if not self.is_set_up:
            return []
        parts: list[Any] = [
            *optional(self.stopping),
            *optional(self.best_models),
            *(self.checkpoints, self.validation, *optional(self.export), self.metrics, self.server.normalization),
            *(*optional(self.losses), *self.rates, self.step, self.untrained, self.unsaved, self.batch_rows),
        ]
        return [warning for part in parts for warning in part.warnings]

    def open(self, stack: ExitStack, writers: ExitStack) -> Training:
        """Call the user's class, restore what was saved, open the sockets and make the training.

        `stack` takes all down again, and `writers` those of metrics.

        Raises:
            StreamServerError: the user's class raised, here or on another rank, or what was saved does not fit.
        """
        counted = self.source.count(stack)
        if counted is not None:
            self.progress.length = TrainingLength.of(
                self.config, self.ranks.size, counted, draws_per_sample=self.buffer.policy.draws_per_sample
            )
        if (early_stop := self.config.training.early_stop) is not None:
            self.stopping = EarlyStopping(early_stop, stop=partial(self.stops.request, StopReason.EARLY_STOP))
        set_up = Phases()
        with set_up.measure("model"):
            self._open_model(stack, writers)
        if self.ranks.rank == 0:
            self._announce()
        # User code is done for now: a rank on which it raised ends the others here, before they open anything.
        barrier(self.ranks)
        if self.ranks.rank == 0:
            # Before there is a port: somebody who floods it could take all file descriptors.
            display = Display(name=self.config.study.name, is_leaving=lambda: self.stops.pending is StopReason.SAVED)
            self.display = stack.enter_context(display)
        with set_up.measure("source"):
            stack.enter_context(self.source)
        if isinstance(self.source, Reception):
            self.server.hold_attributes(_end_early=self.source.end_early)
        feedback = self._make_feedback()
        self.checkpoints = self._make_checkpoints(stack, feedback)
        self._make_scheduled_validation(None if feedback is None else feedback.scores.note_held_out)
        self.best_models = self._make_best_models()
        if not self.config.offline.write_files:
            self.export = ModelExport(
                self.folder.model, step=self.step, config=self.config, normalization=self.server.normalization
            )
        if not (framework_of(self.server).trains_model and self.server.automatic_optimization):
            self.losses = FiniteLosses(self.config.training)
        speed = SpeedGauge(self.progress, self.phases)
        board = self._make_board()
        # A replay receives nothing.
        self.metrics.gauges += [*self._make_gauges(), speed, *([] if self.is_replay else board)]
        training = self.make_training(
            self.source,
            log_every=self.config.training.log_every_batches,
            checkpoints=self.checkpoints,
            leave_at_s=self.leave_at_s,
            before_user=[speed, *optional(self.losses), *optional(self.best_models)],
            before_logging=optional(self.stopping),
            after_logging=[*board, *optional(self.export)],
            feedback=feedback,
            rounds=self._make_rounds(feedback),
        )
        self._restore_training()
        if isinstance(self.source, Reception):
            # A class that learns knows the saved results now.
            self.source.begin_suggesting()
        for part, duration_s in {**set_up.seconds, "total": time.monotonic() - self._began_s}.items():
            self.metrics.log(f"init/{part}_s", duration_s, reduce="max")
        self.is_set_up, self.stops.in_set_up = True, False
        return training

    def _make_buffer(self, config: StudyConfig, ranks: Ranks, plan: RankPlan) -> Buffer:
        num_slots = plan.num_slots
        if self.restored is not None:
            num_slots = num_slots_to_load(self.restored.buffer, capacity=plan.capacity, planned=num_slots)
        policy = make_policy(config, ranks.rank)
        return make_buffer(config, policy, num_slots, spare=plan.spare, most_kept=plan.most_kept)

    def _make_source(self, start: StartOptions, plan: RankPlan, design: ParameterDesign) -> Source:
        if start.replay is not None:
            return ReplaySource(
                self.config,
                self.ranks,
                start.replay,
                parameters=design.names,
                buffer=self.buffer,
                restored=self.restored,
            )
        return Reception(
            self.config,
            self.ranks,
            self.folder,
            self.continuation.identity,
            plan=plan,
            design=design,
            buffer=self.buffer,
            restored=self.restored,
            roster_state=None if self.saved is None else self.saved["roster"],
            retried=self.continuation.retried,
            num_rounds=0 if self.saved is None else self.saved["progress"].get("rounds", 0),
            changes=self.changes,
            start=start,
        )

    def _open_model(self, stack: ExitStack, writers: ExitStack) -> None:
        """Call all user code that comes before the training, and see that its state can be saved."""
        server_class = load_server_class(self.config)
        keep_modules()
        self.make_server(server_class, writers, self._make_metrics())
        where, framework = self.config.study_dir, framework_of(self.server)
        self.newest_weights = NewestWeights(study_dir=where, ranks=self.ranks, framework=framework)
        self.server.hold_attributes(_read_newest=self.newest_weights)
        self.make_step(stack, make_callbacks(self.server))
        if self.step.needs_every_rank and self.config.window is not None and not self.is_replay:
            raise ConfigError(
                "samples.window: a full rank takes steps without one that has no simulation, but SyncBatchNorm, or an "
                "optimizer that the ranks share out, needs every rank at each step. Leave it out, or train on 1 rank"
            )
        # Noise differs from rank to rank.
        seed_generators(self.config.study.seed + 1 + self.ranks.rank)
        self._restore_model()
        # Fail now on a state that cannot be saved, and not after hours of training.
        user_files(self.server, self.callbacks, allow_pickle=self.config.checkpoint.allow_pickle)
        rank_files(self.server, allow_pickle=self.config.checkpoint.allow_pickle)
        failpoint("server.model_ready")

    def _make_metrics(self) -> Metrics:
        """Open the writers, which continue the files of earlier incarnations."""
        config, batches, rank = self.config, self.progress.batches, self.ranks.rank
        # A checkpoint that was committed before a validation has none of its values, and of some sets theirs alone.
        history = [] if self.saved is None else self.saved["callbacks"]["Validation"]["history"]
        run = LoggedRun(
            name=config.study.name,
            id=self.continuation.identity.study,
            folder=self.folder.metrics,
            num_ranks=self.ranks.size,
            after=batches,
            validated=names_validated(history, batches),
            settings=config.resolved(),
        )
        writers = open_writers(run, config.metrics.wanted, config.study_dir) if rank == 0 else []
        stopping = self.stopping
        observer = stopping.on_record if stopping is not None and stopping.observes_records else None
        return Metrics(self.ranks, writers, own=open_own_writer(run, rank), observer=observer, progress=self.progress)

    def _restore_model(self) -> None:
        continuation, config = self.continuation, self.config
        if continuation.base is not None:
            allow_pickle = config.checkpoint.allow_pickle
            folder, num_saved = continuation.folder, continuation.base.ranks
            load_learned(folder, self.server, self.step, self.callbacks, allow_pickle=allow_pickle)
            load_rank_states(folder, num_saved, self.server, allow_pickle=allow_pickle)
            self.changes.new += self.step.changes.new
        elif config.load.checkpoint is not None:
            log.info("%s", warm_start(config, self.server, self.step, self.server.normalization))

    def _announce(self) -> None:
        """Say at the start, on the screen and in the log, what those who run the study should know of it."""
        texts, load = [f"cores: {self.cores}", *self.cores.warnings], self.config.load
        if not self.is_replay:
            texts.append(f"failures: {allowed_failures(self.config)}")
        if self.progress.expected_batches is None:
            clock = self.config.training.lr_clock
            log.info("the number of batches is not known in advance; learning-rate schedules count %s", clock)
        if self.continuation.description:
            texts = [f"{self.config.study.name}: {self.continuation.description}", *map(str, self.changes.new), *texts]
        if (self.continuation.base, load.checkpoint, load.hyperparameters) == (None, None, "saved"):
            texts.append("load.hyperparameters is saved, but nothing was saved so far: this start takes what it makes")
        for text in texts:
            log.info("%s", text)
            print(text, file=sys.stderr, flush=True)
        threads = self.cores.threads if self.saved is None else self.saved["threads"]
        few = "" if self.is_replay else scarcity(self.config, self.ranks.size)
        for warning in filter(None, (self.cores.change_since(threads), few, *self.unprotected)):
            log.warning("%s", warning)

    def _make_board(self) -> list[StatusBoard]:
        if self.display is None:
            return []
        shows = [self.display.show]
        source = self.source
        if isinstance(source, Reception) and not self.config.offline.write_files:
            shows.append(lambda snapshot: source.show(snapshot.training))
        if self.config.metrics.prometheus_port is not None:
            shows.append(self.collector.show)
        return [
            StatusBoard(
                self,
                self.source,
                shows,
                saves=self.checkpoints.counts,
                restarts=self.continuation.identity.incarnation - 1,
                warnings=lambda: [*self.unprotected, *self.source.warnings, *self.warnings],
                changes=tuple(self.changes),
            )
        ]

    def _make_checkpoints(self, stack: ExitStack, feedback: Feedback | None) -> CheckpointAgreement:
        continuation, settings, progress, step = self.continuation, self.config.checkpoint, self.progress, self.step
        incarnation = continuation.identity.incarnation
        saver = stack.enter_context(Saver(continuation.checkpoints, incarnation=incarnation, rank=self.ranks.rank))
        self.make_stream(self.source, stack)
        self.newest_weights.quiesce = self.stream.quiesce
        # They are restored in this order: whatever is restored may use random numbers.
        self.parts = {
            "phases": self.phases,
            **({} if feedback is None else {"scores": feedback.scores}),
            "normalization": self.server.normalization.observed,
            "stream": self.stream,
            "kept": self.metrics,
            "random": RandomStates(step),
        }
        snapshots = StudyCapture(
            config=self.config,
            ranks=self.ranks,
            incarnation=incarnation,
            base=continuation.base_number,
            source=self.source,
            buffer=self.buffer,
            stream=self.stream,
            server=self.server,
            step=step,
            progress=progress,
            callbacks=self.callbacks,
            wall_s=self.wall_s,
            threads=self.cores.threads,
            parts=self.parts,
            changes=self.changes,
        )
        milestones = None
        if settings.keep_every is not None or settings.keep_at:
            milestones = Milestones(Schedule(every=settings.keep_every, at=settings.keep_at), progress)
        return CheckpointAgreement(
            ranks=self.ranks,
            saver=saver,
            study=snapshots,
            newest=continuation.base_number,
            schedule=Schedule(every=settings.every_batches),
            every_s=settings.every_s,
            progress=progress,
            at_boundary=lambda: step.at_boundary,
            phases=self.phases,
            milestones=milestones,
        )

    def _make_scheduled_validation(self, observe: Observe | None) -> None:
        source, settings, stops = self.source, self.config.validation, self.stops
        schedule = Schedule(every=settings.every_batches, every_s=settings.every_s, at=settings.at)
        every = {name: it.every_batches for name, it in settings.sets.items() if it.every_batches is not None}
        self.make_validation(
            self.held_out(source),
            schedules={"": schedule, **{name: Schedule(every=num) for name, num in every.items()}},
            must_leave=lambda: stops.pending is StopReason.SAVED or time.monotonic() >= self.leave_at_s,
            save_before=self.checkpoints.take_before_validation if settings.save_before else lambda: None,
            quiesce=self.stream.quiesce,
            record=held_out_record(self.folder.validations, self.server, self.ranks),
            observe=observe,
        )

    def _make_best_models(self) -> BestModels | None:
        settings, server, step = self.config.checkpoint, self.server, self.step
        if not settings.keep_best:
            return None

        def capture() -> list[PendingFile]:
            states = {Normalization.__name__: server.normalization.state_dict()}
            return model_files(server, step, callbacks=states, allow_pickle=settings.allow_pickle)

        continuation = self.continuation
        folder, is_outdated = continuation.checkpoints.folder / BEST, continuation.is_outdated
        return BestModels(folder, step, settings, capture=capture, is_outdated=is_outdated, phases=self.phases)

    def _make_feedback(self) -> Feedback | None:
        source = self.source
        if not isinstance(source, Reception) or not source.learns:
            return None
        return Feedback(
            self.ranks,
            schedule=log_schedule(self.config.training.log_every_batches, is_paced=False),
            progress=self.progress,
            ingest=source.ingest,
            failures=source.failed_simulations,
            parameters=self.parameter_names,
        )

    def _make_rounds(self, feedback: Feedback | None) -> Rounds | None:
        source = self.source
        if self.config.study.rounds is None or not isinstance(source, Reception):
            return None
        return Rounds(
            self.ranks,
            source,
            self.callbacks,
            self.progress,
            validate=self.validation.end_round,
            tell_results=(lambda: None) if feedback is None else feedback.gather,
            save_every=self.config.checkpoint.every_rounds,
            save=self.checkpoints.take_last,
        )

    def _make_gauges(self) -> list[Gauge]:
        buffer, parameters_of = self.buffer, self.source.parameters_of
        inputs = InputGauge(buffer, parameter_names=self.parameter_names, parameters_of=parameters_of)
        return [
            BufferGauge(buffer),
            MemoryGauge(framework_of(self.server).device_bytes),
            RateLimited(SamplesGauge(buffer)),
            RateLimited(inputs),
        ]

    def _restore_training(self) -> None:
        saved, restored = self.saved, self.restored
        if saved is None or restored is None:
            return
        self.callbacks.load_state_dict(saved["callbacks"])
        # Last of all, since making the model and opening the sockets may have used random numbers. Where states are not
        # restored, on other ranks or devices, the streams start over.
        numbers = self.continuation.seed(self.config.study.seed, NOISE_STREAM, self.ranks.size)
        seed_random_states((*numbers, self.ranks.rank), self.step)
        # The phases were restored before the set-up. On other ranks the random streams stay as they were seeded.
        others = ("phases",) if restored.is_own else ("phases", "random")
        parts = {name: part for name, part in self.parts.items() if name not in others}
        # A study that learns only since it goes on has no scores yet, and one of before `keep` nothing kept.
        restored.load(parts, optional=["scores", "kept"])
        if not restored.is_own and isinstance(self.source, Reception):
            self.stream.share_drawn(self.ranks, self.source.num_drawn)
