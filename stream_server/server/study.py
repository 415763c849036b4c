"""A study on one rank, from beginning to end: builds its parts, runs them, and settles the account."""

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig, check_ranks
from stream_server.errors import ConfigError, RankLost
from stream_server.server import parts
from stream_server.server.closing import Closing, outcome_of, rank_report
from stream_server.server.design import ParameterDesign
from stream_server.server.failure import Failure, leave_together
from stream_server.server.identity import Identity
from stream_server.server.logs import Logs
from stream_server.server.output import OutputFolder
from stream_server.server.plan import make_plan
from stream_server.server.ranks import Ranks, ranks_from_environment
from stream_server.server.reception import Reception
from stream_server.server.report import Outcome, RankReport
from stream_server.server.stream import StreamDataset
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.display import Display, Status
from stream_server.server.training.gauges import BufferGauge, SpeedGauge
from stream_server.server.training.lockstep import come_together
from stream_server.server.training.loop import Training
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.step import Step
from stream_server.server.training.stop import StopRequests
from stream_server.server.training.validation import Validation
from stream_server.server.training.validation_batches import HeldOutSamples
from stream_server.server.training.writers import open_writers
from stream_server.server.user_class import load_server_class
from stream_server.server.watch import Watch


def run_study(config: StudyConfig, *, fresh: bool) -> int:
    """Run a study on all ranks of this MPI job, or on one rank outside of MPI. Collective.

    Returns:
        The exit code, the same on all ranks.

    Raises:
        ConfigError: the study cannot begin; the same on all ranks.
    """
    ranks = ranks_from_environment()
    try:
        return _run(config, ranks, fresh=fresh)
    except ConfigError:
        raise
    except BaseException:
        traceback.print_exc()
        ranks.abort(RankLost.exit_code)


def _run(config: StudyConfig, ranks: Ranks, *, fresh: bool) -> int:
    check_ranks(config, ranks.size)
    folder = OutputFolder(config.output_dir)
    if not fresh and _by_rank_0(ranks, folder.is_finished):
        if ranks.rank == 0:
            print(f"{config.study.name} is finished: {folder.report} says how. --fresh starts it over.")
        return 0
    _by_rank_0(ranks, lambda: folder.prepare(config, fresh=fresh))
    identity = Identity.from_json(
        _by_rank_0(ranks, lambda: Identity.make(secure=config.network.security == "curve").to_json())
    )
    with Logs(folder.path, ranks.rank):
        return StudyRank(config, ranks, folder, identity).run()


def _by_rank_0(ranks: Ranks, decide: Callable[[], Any]) -> Any:
    """What `decide` gives on rank 0, on all ranks; when it cannot, all raise the same ConfigError."""
    said: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            said = {"value": decide()}
        except (ConfigError, OSError) as error:
            said = {"error": str(error)}
    said = ranks.broadcast(said)
    if "error" in said:
        raise ConfigError(said["error"])
    return said["value"]


class StudyRank:
    """One rank of a running study."""

    def __init__(self, config: StudyConfig, ranks: Ranks, folder: OutputFolder, identity: Identity) -> None:
        plan = make_plan(config)
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.design = ParameterDesign(config)
        self.buffer = Buffer(parts.make_policy(config, ranks.rank), parts.make_slots(config, plan))
        self.reception = Reception(config, ranks, folder, identity, plan=plan, design=self.design, buffer=self.buffer)
        self.progress = Progress(ranks.size)
        self.phases = Phases()
        self.stops = StopRequests()
        self.closing = Closing(
            config=config,
            ranks=ranks,
            folder=folder,
            identity=identity,
            progress=self.progress,
            stops=self.stops,
            started_s=time.monotonic(),
        )
        self.stage = "set-up"
        self.latest: Mapping[str, float] = {}
        self.stream: StreamDataset | None = None
        self.validation: Validation | None = None

    def run(self) -> int:
        """Train to the end and settle the account. Collective; returns the exit code of all ranks."""
        with ExitStack() as stack:
            try:
                training = self._set_up(stack)
                self.stage = "training"
                training.run()
                self.stage = "end"
                self.reception.end(self.stops)
                outcome = outcome_of(self.stops)
            except Exception as error:
                outcome = self._leave(error)
        return self.closing.close(outcome, self._report(), roster=self.reception.roster, validation=self.validation)

    def _set_up(self, stack: ExitStack) -> Training:
        ranks, is_first = self.ranks, self.ranks.rank == 0
        metrics = stack.enter_context(Metrics(ranks, open_writers(self.folder.metrics) if is_first else ()))
        metrics.gauges += [BufferGauge(self.buffer), SpeedGauge(self.progress, self.phases)]
        self.latest = metrics.latest
        server = self._make_server(metrics)
        name = f"{type(server).__name__}.configure_callbacks"
        callbacks = Callbacks(server, call_user(name, server.configure_callbacks))
        step = stack.enter_context(server.make_step(ranks))
        # User code is done for now: a rank on which it raised ends the others here, before they open anything.
        come_together(ranks)
        reception = stack.enter_context(self.reception)
        display = stack.enter_context(Display(name=self.config.study.name)) if is_first else None
        watch = Watch(reception.receiver, callbacks, launcher=reception.launcher, display=display, status=self._status)
        stack.enter_context(self.stops.on_signals())
        self.stream = self._make_stream(server)
        self.validation = self._make_validation(server, callbacks, step)
        return Training(
            config=self.config,
            ranks=ranks,
            stream=self.stream,
            step=step,
            stops=self.stops,
            progress=self.progress,
            callbacks=callbacks,
            metrics=metrics,
            validation=self.validation,
            phases=self.phases,
            each_round=watch.look,
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
            parameters_of=self.reception.receiver.parameters.__getitem__,
            batch_size=self.config.training.batch_size,
            phases=self.phases,
        )

    def _make_validation(self, server: StreamServer, callbacks: Callbacks, step: Step) -> Validation:
        reception, settings = self.reception, self.config.validation
        return Validation(
            server,
            self.ranks,
            callbacks,
            step,
            held_out=HeldOutSamples(
                store=reception.validation_store, parameters_of=reception.receiver.parameters.__getitem__
            ),
            batch_size=settings.batch_size,
            every_batches=settings.every_batches,
            phases=self.phases,
        )

    def _leave(self, error: Exception) -> Outcome:
        """Make all ranks end because of `error`, in order if they can be reached, or else at once."""
        agreed = leave_together(error, self.ranks, self.folder.path, phase=self.stage)
        failure = Failure.read(self.folder.path) or Failure.of(error, rank=self.ranks.rank, phase=self.stage)
        if agreed is None or self.ranks.rank == 0:
            print(f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}", file=sys.stderr, flush=True)
        if agreed is None:
            self.closing.close_alone(failure, self._report(), roster=self.reception.roster, validation=self.validation)
            self.ranks.abort(failure.exit_code)
        return self.closing.outcome_of_failure(failure)

    def _status(self) -> Status:
        """How far the study is, for rank 0's display."""
        reception = self.reception
        assert reception.roster is not None
        with reception.receiver.turn:
            counts, num_samples = reception.roster.counts(), reception.roster.num_settled
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
        )

    def _num_expected(self, num_simulations: int) -> int | None:
        steps = self.config.study.time_steps
        return None if steps is None else steps.num * num_simulations

    def _report(self) -> RankReport:
        reception = self.reception.account
        if reception is not None:
            self.phases.add("receive", self.reception.receiver.receive_s)
        return rank_report(
            reception=reception,
            num_drawn=0 if self.stream is None else self.stream.num_drawn,
            num_left=self.buffer.num_unseen + self.buffer.num_waiting,
            phases_s=self.phases.seconds,
            buffer_bytes=self.buffer.slots.sample_bytes * self.buffer.slots.num_slots,
        )
