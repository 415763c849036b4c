"""A study on one rank, from beginning to end. The only file that builds the parts of a running server."""

import logging
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stream_server.buffers import Buffer
from stream_server.client_api.connection import ConnectionFile, Security
from stream_server.config import StudyConfig, check_ranks
from stream_server.errors import ConfigError, RankLost
from stream_server.launcher import link
from stream_server.server import parts
from stream_server.server.access import Access
from stream_server.server.closing import Closing, outcome_of, rank_report
from stream_server.server.design import ParameterDesign, write_csv
from stream_server.server.endpoints import Endpoints, ReceiverSettings
from stream_server.server.failure import Failure, leave_together
from stream_server.server.identity import Identity
from stream_server.server.launcher_process import LauncherProcess
from stream_server.server.logs import Logs
from stream_server.server.output import OutputFolder
from stream_server.server.plan import make_plan
from stream_server.server.ranks import Ranks, ranks_from_environment
from stream_server.server.receiver import Receiver, StopStudy
from stream_server.server.report import Outcome, RankReport
from stream_server.server.roster import Roster, StudyFacts
from stream_server.server.stream import StreamDataset
from stream_server.server.stream_server import StreamServer
from stream_server.server.tracker import Tracker
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.display import Display, Status
from stream_server.server.training.gauges import BufferGauge, SpeedGauge
from stream_server.server.training.lockstep import come_together
from stream_server.server.training.loop import Training
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopRequests
from stream_server.server.training.validation import Validation
from stream_server.server.training.validation_batches import HeldOutSamples
from stream_server.server.training.writers import open_writers
from stream_server.server.user_class import load_server_class
from stream_server.server.validation_store import ValidationStore
from stream_server.server.watch import Watch

STOP_GRACE_S = 10.0
LEAVE_S = 20.0
WAIT_SLICE_S = 0.2
PATIENCE_S = 3.0

log = logging.getLogger(__name__)


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
    """One rank's parts of a running study, in the order in which a sample meets them."""

    def __init__(self, config: StudyConfig, ranks: Ranks, folder: OutputFolder, identity: Identity) -> None:
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.identity = identity
        self.plan = make_plan(config)
        self.buffer = Buffer(parts.make_policy(config, ranks.rank), parts.make_slots(config, self.plan))
        self.validation_store = ValidationStore(config.validation.simulations)
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
        self.receiver: Receiver | None = None
        self.roster: Roster | None = None
        self.stream: StreamDataset | None = None
        self.validation: Validation | None = None

    def run(self) -> int:
        """Train to the end and settle the account. Collective; returns the exit code of all ranks."""
        with ExitStack() as stack:
            try:
                self._train(stack)
                outcome = outcome_of(self.stops)
            except Exception as error:
                outcome = self._leave(error)
        return self.closing.close(outcome, self._report(), roster=self.roster, validation=self.validation)

    def _leave(self, error: Exception) -> Outcome:
        """Make all ranks end because of `error`, in order if they can be reached, or else at once."""
        agreed = leave_together(error, self.ranks, self.folder.path, phase=self.stage)
        failure = Failure.read(self.folder.path) or Failure.of(error, rank=self.ranks.rank, phase=self.stage)
        if agreed is None or self.ranks.rank == 0:
            print(f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}", file=sys.stderr, flush=True)
        if agreed is None:
            mine = self._report()
            with nullcontext() if self.receiver is None else self.receiver.turn:
                self.closing.close_alone(failure, mine, roster=self.roster, validation=self.validation)
            self.ranks.abort(failure.exit_code)
        return self.closing.outcome_of_failure(failure)

    def _train(self, stack: ExitStack) -> None:
        config, ranks, folder = self.config, self.ranks, self.folder
        is_first = ranks.rank == 0
        design = ParameterDesign(config)
        metrics = stack.enter_context(Metrics(ranks, open_writers(folder.metrics) if is_first else ()))
        metrics.gauges += [BufferGauge(self.buffer), SpeedGauge(self.progress, self.phases)]
        self.latest = metrics.latest
        server = self._make_server(design, metrics)
        name = f"{type(server).__name__}.configure_callbacks"
        callbacks = Callbacks(server, call_user(name, server.configure_callbacks))
        step = stack.enter_context(server.make_step(ranks))
        # User code is done for now: a rank on which it raised ends the others here, before they open anything.
        come_together(ranks)
        ipc_folder = self._make_ipc_folder(stack)
        receiver = self.receiver = self._make_receiver(ipc_folder)
        stack.callback(receiver.close)
        endpoints = self._meet(receiver, design)
        stack.enter_context(receiver)
        launcher = stack.enter_context(self._start_launcher(receiver, ipc_folder, endpoints[0])) if is_first else None
        self.stream = StreamDataset(
            self.buffer,
            server,
            parameters_of=receiver.parameters.__getitem__,
            batch_size=config.training.batch_size,
            phases=self.phases,
        )
        self.validation = Validation(
            server,
            ranks,
            callbacks,
            step,
            held_out=HeldOutSamples(store=self.validation_store, parameters_of=receiver.parameters.__getitem__),
            batch_size=config.validation.batch_size,
            every_batches=config.validation.every_batches,
            phases=self.phases,
        )
        display = stack.enter_context(Display(name=config.study.name)) if is_first else None
        watch = Watch(receiver, callbacks, launcher=launcher, display=display, status=self._status)
        stack.enter_context(self.stops.on_signals())
        self.stage = "training"
        Training(
            config=config,
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
        ).run()
        self.stage = "end"
        self._end(receiver, launcher)

    def _end(self, receiver: Receiver, launcher: LauncherProcess | None) -> None:
        """Let the simulations go. The sockets of all ranks stay open until their last process has ended."""
        if launcher is not None:
            finished = self.stops.agreed is None
            grace_s = self.config.simulation.timeout_s if finished else STOP_GRACE_S
            receiver.post(StopStudy(reason=self.stops.text or "the study has ended", grace_s=grace_s))
            self._wait_for(launcher, grace_s + LEAVE_S)
        self.ranks.barrier()
        if receiver.error is not None:
            raise RankLost("the receiver failed after the last batch") from receiver.error

    def _wait_for(self, launcher: LauncherProcess, timeout_s: float) -> None:
        """Wait until the last job has ended; a signal that comes meanwhile ends the waiting, and so the jobs."""
        was_asked = self.stops.num_requests
        start = time.monotonic()
        told = False
        while not launcher.wait(WAIT_SLICE_S) and self.stops.num_requests == was_asked:
            waited_s = time.monotonic() - start
            if waited_s > timeout_s:
                return
            if waited_s > PATIENCE_S and not told:
                told = True
                log.warning("all is trained, but simulations still run: waiting for them to end (Ctrl-C ends them)")

    def _make_server(self, design: ParameterDesign, metrics: Metrics) -> StreamServer:
        server_class = load_server_class(self.config)
        server: StreamServer = call_user(server_class.__name__, server_class, self.config)
        server.enter_study(
            ranks=self.ranks,
            parameter_names=design.names,
            progress=self.progress,
            buffer=self.buffer,
            output_dir=self.folder.path,
            metrics=metrics,
            stops=self.stops,
        )
        return server

    def _make_ipc_folder(self, stack: ExitStack) -> Path:
        """A private folder for the sockets of this node's ranks; its path is short, since one of a socket must be."""
        ranks = self.ranks
        mine = tempfile.TemporaryDirectory(prefix="stream-") if ranks.local_rank == 0 else nullcontext(None)
        folders = ranks.broadcast(ranks.gather([ranks.node, stack.enter_context(mine)]))
        return Path(next(folder for node, folder in folders if node == ranks.node and folder is not None))

    def _make_receiver(self, ipc_folder: Path) -> Receiver:
        config, ranks, keys = self.config, self.ranks, self.identity
        access = None
        if keys.server_keys is not None and keys.attaching_keys is not None:
            access = Access(keys.server_keys, attaching=keys.attaching_keys.public)
        return Receiver(
            rank=ranks.rank,
            num_ranks=ranks.size,
            buffer=self.buffer,
            tracker=Tracker(
                rank=ranks.rank,
                num_ranks=ranks.size,
                routing=parts.routing(config),
                time_steps=parts.time_steps(config),
                fields=parts.field_specs(config),
                study=keys.study,
                epoch=keys.epoch,
                credit=self.plan.credit,
                room=self.plan.credit * self.plan.max_clients,
                claim=self.buffer.claim,
            ),
            validation=self.validation_store,
            access=access,
            settings=ReceiverSettings(
                ipc_folder=ipc_folder,
                host=socket.gethostname(),
                interface=config.network.interface or "*",
                ports=config.network.ports,
                link=launcher_address(ipc_folder) if ranks.rank == 0 else None,
                nonfinite=config.training.nonfinite,
            ),
        )

    def _meet(self, receiver: Receiver, design: ParameterDesign) -> list[Endpoints]:
        gathered = self.ranks.gather(receiver.bind().to_dict())
        endpoints = [Endpoints.from_dict(plain) for plain in self.ranks.broadcast(gathered)]
        if self.ranks.rank == 0:
            self.roster = self._make_roster(design, endpoints)
            write_csv(self.folder.parameters, self.roster.parameters)
        receiver.meet(endpoints, self.roster)
        return endpoints

    def _make_roster(self, design: ParameterDesign, endpoints: list[Endpoints]) -> Roster:
        config = self.config
        num_planned = config.study.simulations + config.validation.simulations
        ids = [i for i in range(num_planned + parts.num_redraws(config)) if i < num_planned or design.has(i)]
        facts = StudyFacts(
            study=self.identity.study,
            epoch=self.identity.epoch,
            endpoints=tuple(each.data for each in endpoints),
            time_steps=parts.time_steps(config),
            fields=parts.field_specs(config),
            routing=parts.routing(config),
        )
        return Roster(
            facts,
            [design.parameters(i) for i in ids],
            num_planned=num_planned,
            num_held_out=config.validation.simulations,
            num_ranks=self.ranks.size,
        )

    def _start_launcher(self, receiver: Receiver, ipc_folder: Path, endpoints: Endpoints) -> LauncherProcess:
        assert self.roster is not None
        keys = self.identity
        security = None
        if keys.server_keys is not None and keys.attaching_keys is not None:
            security = Security(
                server_public_key=keys.server_keys.public,
                client_public_key=keys.attaching_keys.public,
                client_secret_key=keys.attaching_keys.secret,
            )
        connection = ConnectionFile(
            study=keys.study, epoch=keys.epoch, host=endpoints.host, control=endpoints.control, security=security
        )
        connection.write(self.folder.connection)
        receiver.post(
            link.Plan(
                study=keys.study,
                epoch=keys.epoch,
                output_dir=str(self.folder.path),
                connection=asdict(connection),
                simulations=tuple(self.roster.plan),
            )
        )
        return LauncherProcess(
            self.folder.study,
            launcher_address(ipc_folder),
            log=self.folder.path / "logs" / "launcher.log",
            simulations=self.folder.simulations,
        )

    def _status(self) -> Status:
        """How far the study is, for rank 0's display."""
        assert self.receiver is not None
        assert self.roster is not None
        with self.receiver.turn:
            counts, num_samples = self.roster.counts(), self.roster.num_settled
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
        if self.receiver is not None:
            self.phases.add("receive", self.receiver.receive_s)
        return rank_report(
            reception=None if self.receiver is None else self.receiver.account(),
            num_drawn=0 if self.stream is None else self.stream.num_drawn,
            num_left=self.buffer.num_unseen + self.buffer.num_waiting,
            phases_s=self.phases.seconds,
            buffer_bytes=self.buffer.slots.sample_bytes * self.buffer.slots.num_slots,
        )


def launcher_address(ipc_folder: Path) -> str:
    """Where the launcher listens for rank 0."""
    return f"ipc://{ipc_folder}/launcher"
