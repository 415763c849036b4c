"""The reception of samples: one rank's receiver, and on rank 0 the roster and the launcher, run together."""

import logging
import socket
from collections.abc import Container, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, ProducerFailed, RankLost
from stream_server.failpoints import failpoint
from stream_server.machine import network
from stream_server.machine.descriptors import most_connections
from stream_server.machine.screen import in_one_line
from stream_server.messages import launcher_link
from stream_server.messages.notices import EndEarly
from stream_server.messages.operator import Change, TrainingStatus
from stream_server.messages.tcp import ANYWHERE
from stream_server.server.checkpoint.restore import RankRestore
from stream_server.server.intake import mailbox
from stream_server.server.intake.account import RankAccount
from stream_server.server.intake.ledger import finished_simulations
from stream_server.server.intake.source import ReceptionSnapshot, Source
from stream_server.server.intake.validation_store import NoValidationStore, ValidationStore
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.reception.build import (
    make_access,
    make_connection,
    make_intake,
    make_ipc_folder,
    make_operator_file,
    make_roster,
)
from stream_server.server.reception.receiver import Receiver
from stream_server.server.reception.simulation_stop import SimulationStop
from stream_server.server.reception.sockets import Endpoints, ReceiverSettings
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder, begins_and_ends
from stream_server.server.run.build import ragged_fields
from stream_server.server.run.identity import Identity
from stream_server.server.run.output import OutputFolder
from stream_server.server.run.plan import RankPlan
from stream_server.server.run.start import StartOptions
from stream_server.server.simulations.design import DesignWarnings, ParameterDesign, append_csv, write_csv
from stream_server.server.simulations.launcher_process import LauncherProcess
from stream_server.server.simulations.roster import Roster
from stream_server.server.steering.suggester import Suggester
from stream_server.storage.plain_state import damage_in

log = logging.getLogger(__name__)


class Reception(Source):
    """Receives samples into `buffer` and `validation_store` while the `with` block lasts. Collective; main thread.

    `roster`, `launcher` and `suggester` are rank 0's. `learns`: parameters are suggested by a class that wants results.
    `num_rounds` rounds have ended before. `changes` are what restarts have changed, for the record.
    """

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        folder: OutputFolder,
        identity: Identity,
        *,
        plan: RankPlan,
        design: ParameterDesign,
        buffer: Buffer,
        start: StartOptions,
        restored: RankRestore | None = None,
        roster_state: Mapping[str, Any] | None = None,
        retried: Container[int] = (),
        num_rounds: int = 0,
        changes: Iterable[Change] = (),
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.identity = identity
        self.plan = plan
        self.design = design
        self.buffer = buffer
        self.start = start
        self.restored = restored
        self.roster_state = roster_state
        self.retried = retried
        self.num_rounds = num_rounds
        self.changes = changes
        store = NoValidationStore if config.offline.write_files else ValidationStore
        self.validation_store = store(config.validation.simulations, ragged=ragged_fields(config))
        self._receiver: Receiver | None = None
        self.roster: Roster | None = None
        self.launcher: LauncherProcess | None = None
        self.recorder: Recorder | None = None
        self.suggester: Suggester | None = None
        self._design_warnings = DesignWarnings(config, design.names)
        self.learns = False
        self._stack = ExitStack()

    @property
    def receiver(self) -> Receiver:
        """This rank's receiver, once it was made."""
        assert self._receiver is not None
        return self._receiver

    @property
    def account(self) -> RankAccount | None:
        return None if self._receiver is None else self._receiver.account()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ipc_folder = make_ipc_folder(self.ranks, stack)
            receiver = self._receiver = self._make_receiver(ipc_folder)
            if self.restored is not None:
                self._restore(receiver, self.restored)
            # Where all types are known, a rank without the memory is noticed before any simulation runs.
            receiver.intake.allocate()
            if self.config.checkpoint.record:
                self.recorder = receiver.intake.settlement.recorder = stack.enter_context(self._make_recorder(receiver))
            if self.ranks.rank == 0 and self.design.is_suggested:
                self.suggester = stack.enter_context(self._make_suggester())
            if self.design.is_suggested:
                self.learns = self.ranks.broadcast(self.suggester is not None and self.suggester.learns)
            stack.callback(self.receiver.close)
            endpoints = self._meet()
            if self.restored is not None:
                self._restore_ended(receiver)
            failpoint("server.before_announcement")
            stack.enter_context(self.receiver)
            if self.roster is not None:
                write_csv(self.folder.parameters, self.roster.parameters, self.roster.origins)
                self._note_design(self.roster.parameters)
                for text in self._design_warnings.texts:
                    log.warning("%s", text)
                self._announce(self.roster, endpoints[0])
                if self.start.link is None:
                    stack.callback(receiver.sockets.launcher_has_ended)
                    self.launcher = stack.enter_context(self._make_launcher(ipc_folder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def stop_receiving(self) -> None:
        self.receiver.stop_receiving()

    def snapshot(self) -> ReceptionSnapshot:
        return self.receiver.snapshot()

    def committed(self, snapshot: ReceptionSnapshot, checkpoint: int, batches: int) -> None:
        """Tell the clients that a snapshot is in a committed checkpoint: they may forget its steps."""
        marks = snapshot.received_marks
        self.receiver.post(mailbox.CheckpointCommitted(received_marks=marks, checkpoint=checkpoint, batches=batches))

    @property
    def num_received(self) -> int:
        return self.receiver.num_received

    @property
    def num_drawn(self) -> int:
        """Number of samples accepted by this rank that were drawn, on whatever rank."""
        with self.receiver.turn:
            return self.receiver.intake.num_drawn

    @property
    def num_missing(self) -> int:
        """Number of steps of training simulations that will never come, less those of redrawn ones."""
        return 0 if self.roster is None else self.roster.num_missing

    @property
    def has_pressure(self) -> bool:
        return self.receiver.intake.settlement.has_pressure

    @property
    def simulations(self) -> Roster | None:
        return self.roster

    @property
    def receive_s(self) -> float:
        return 0.0 if self._receiver is None else self._receiver.receive_s

    @property
    def warnings(self) -> list[str]:
        self._note_design({})
        observers = () if self._receiver is None else self._receiver.intake.observers
        told = [
            *self._design_warnings.texts,
            *([] if self.suggester is None else self.suggester.warnings),
            *([] if self.roster is None else self.roster.warnings.texts),
            *(text for it in observers for text in it.warnings),
        ]
        error = None if self.recorder is None else self.recorder.error
        if error is None and (self.recorder is None or not self.recorder.is_over):
            return told
        return [
            *told,
            f"not all samples are recorded: {error or 'the recording had ended in an earlier incarnation'}",
        ]

    def begin_suggesting(self) -> None:
        """From now on ask the class that suggests parameters for what is wanted."""
        if self.suggester is not None:
            self.suggester.start(
                lambda it: self.receiver.post(mailbox.ParametersSuggested(parameters=it)),
                self.end_early,
                lambda reason: self.receiver.post(mailbox.EnoughSuggested(reason=in_one_line(reason))),
            )

    def ingest(self, results: Mapping[int, Mapping[str, float]]) -> None:
        """Give the results of simulations to the class that suggests parameters. Rank 0."""
        assert self.suggester is not None
        assert self.roster is not None
        with self.receiver.turn:
            rows = self.roster.table.with_parameters(results)
        self.suggester.ingest(rows)

    def end_early(self, simulation: int, reason: str) -> None:
        """Stop a simulation that is to be trained on."""
        self.receiver.post(EndEarly(simulation=simulation, reason=in_one_line(reason)))

    @property
    def is_drained(self) -> bool:
        """Whether no sample will come any more, and all that came were drawn."""
        with self.receiver.turn:
            return self.receiver.dispatcher.is_final and not self.buffer.num_left

    def begin_round(self, num_ended: int) -> None:
        """Take in samples again, and let the simulations of the next round begin, unless all are over. Collective."""
        with self.receiver.turn:
            if not self.receiver.dispatcher.is_final:
                self.buffer.reopen()
        # Before a simulation begins, all ranks must take in what it sends.
        self.ranks.gather(num_ended)
        num_released = self.config.num_released(num_ended)
        if self.roster is not None and num_released is not None:
            with self.receiver.turn:
                known = self.roster.begin_round(num_released)
            self._note_design(known)
            try:
                append_csv(self.folder.parameters, known, self.roster.origins)
            except OSError as error:
                # Written again at the next start; nothing else depends on it.
                log.error("%s lacks simulations: %s", self.folder.parameters.name, error)
            self.receiver.post(mailbox.ParametersSuggested(parameters=known))

    def failed_simulations(self) -> list[int]:
        """The simulations that were given up or withdrew themselves. Rank 0."""
        assert self.roster is not None
        with self.receiver.turn:
            return self.roster.failed_simulations

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        return self.receiver.parameters[simulation]

    def counts(self) -> tuple[dict[str, int], int]:
        assert self.roster is not None
        with self.receiver.turn:
            return self.roster.table.counts(), self.roster.table.num_settled

    @property
    def awaited(self) -> str:
        assert self.roster is not None
        with self.receiver.turn:
            return self.roster.awaited

    def show(self, training: TrainingStatus) -> None:
        """Keep how the training is doing, for an operator who asks. Rank 0."""
        self.receiver.show(training)

    def events(self) -> list[mailbox.Event]:
        """The events since the last call. A launcher of ours that was killed is started again.

        Raises:
            ConfigError: it refuses the study.
            RankLost: it ended by itself although nobody told it to.
            ProducerFailed: no more parameters are suggested, because of an error.
        """
        if self.suggester is not None and self.suggester.error is not None:
            raise ProducerFailed("no simulation gets parameters any more") from self.suggester.error
        if self.launcher is not None and (exit_code := self.launcher.exit_code) is not None:
            if exit_code == ConfigError.exit_code:
                raise ConfigError(self.launcher.last_words)
            if exit_code >= 0:
                raise RankLost(
                    f"the launcher ended with exit code {exit_code}; logs/launcher.log in the output folder says why"
                )
            log.warning("the launcher was killed; another one takes over what runs")
            self.launcher.restart()
        found: list[mailbox.Event] = []
        with suppress(Empty):
            while True:
                event = self.receiver.events.get_nowait()
                # A launcher of ours, which we start again ourselves, is watched by its process.
                if self.launcher is None or not isinstance(event, mailbox.LauncherSilence):
                    found.append(event)
        return found

    def stop_simulations(self, stops: StopRequests) -> None:
        """Tell the simulations that nothing more is wanted, and wait until they have ended.

        The sockets of all ranks stay open until the last process has.
        """
        stop = SimulationStop(self.ranks, self.receiver, self.launcher)
        stop.run(stops, timeout_s=self.config.simulation.timeout_s)
        if self.receiver.error is not None:
            raise ProducerFailed("the receiver failed after the last batch") from self.receiver.error

    def _make_receiver(self, ipc_folder: Path) -> Receiver:
        link_address, interface = self.start.link or launcher_address(ipc_folder), self.config.network.interface
        settings = ReceiverSettings(
            ipc_folder=ipc_folder,
            host=socket.gethostname(),
            address=ANYWHERE if interface is None else network.chosen(interface).address,
            ports=self.config.network.ports,
            link=link_address if self.ranks.rank == 0 else None,
            link_keys=self.start.launcher_keys,
            max_connections=most_connections(self.plan.connections),
        )
        return Receiver(
            buffer=self.buffer,
            intake=make_intake(
                self.config, self.plan, self.identity, self.ranks, buffer=self.buffer, validation=self.validation_store
            ),
            access=make_access(self.identity),
            settings=settings,
        )

    def _restore(self, receiver: Receiver, restored: RankRestore) -> None:
        """Take back ledger, buffer and validation store of this rank from an earlier incarnation."""
        restored.load(receiver.parts)
        restored.into_buffer(self.buffer)
        receiver.intake.restore_waiting(restored.waiting)
        restored.into_store(self.validation_store)

    def _restore_ended(self, receiver: Receiver) -> None:
        """Agree on what had ended in an earlier incarnation. Collective.

        The parts of a checkpoint were captured one after the other: what rank 0 believed then may be more than the
        others had, or less. So finished is what the ledgers of all ranks have whole.
        """
        gathered = self.ranks.gather(sorted(receiver.intake.state.ledger.complete().items()))
        if self.roster is not None and self.roster_state is not None and gathered is not None:
            finished = finished_simulations([dict(of_rank) for of_rank in gathered])
            with damage_in("the roster"):
                self.roster.load_state_dict(self.roster_state, finished, self.retried)
        ended = self.ranks.broadcast(None if self.roster is None else self.roster.ended())
        for simulation in receiver.intake.restore_ended(finished=ended["finished"], invalid=ended["invalid"]):
            receiver.events.put(mailbox.SimulationFinished(simulation=simulation))
        if not ended["final"]:
            self.buffer.reopen()

    def _make_recorder(self, receiver: Receiver) -> Recorder:
        # A study that was finished, and goes on with more simulations, has the others in its files.
        is_in_files = self.ranks.broadcast(self.folder.samples.exists() and not self.folder.record.exists())
        restored = None if is_in_files else self.restored
        position, gone = begins_and_ends(
            self.folder.record,
            {} if restored is None else restored.recorded(),
            incarnation=0 if restored is None else restored.incarnation,
            rank=self.ranks.rank,
            num_ranks=self.ranks.size,
        )
        return Recorder(
            self.folder.record,
            RecordedStudy.of(self.config, self.design.names, self.ranks.size, self.changes),
            rank=self.ranks.rank,
            incarnation=self.identity.incarnation,
            position=position,
            rows=self.buffer.slots,
            parameters_of=receiver.parameters.__getitem__,
            gone=gone,
            required=self.config.offline.write_files,
        )

    def _meet(self) -> list[Endpoints]:
        gathered = self.ranks.gather(self.receiver.bind().to_dict())
        endpoints = [Endpoints.from_dict(plain) for plain in self.ranks.broadcast(gathered)]
        if self.ranks.rank == 0:
            self.roster = make_roster(
                self.config, self.design, self.suggester, self.identity, endpoints, num_rounds=self.num_rounds
            )
        want = {} if self.suggester is None else {"want_parameters": self.suggester.want}
        self.receiver.meet(endpoints, self.roster, **want)
        return endpoints

    def _note_design(self, parameters: Mapping[int, Mapping[str, float]]) -> None:
        """Note what was suggested since, or, where nothing is, these parameters of further simulations."""
        known = self._design_warnings
        if self.suggester is None:
            known.note((simulation, values.values()) for simulation, values in parameters.items())
        else:
            known.note((it.simulation, it.values) for it in self.suggester.suggestions[known.num_noted :])

    def _make_suggester(self) -> Suggester:
        return Suggester(self.config, self.folder.path, parameters_csv=self.folder.parameters)

    def _announce(self, roster: Roster, endpoints: Endpoints) -> None:
        """Tell where the study is: those who attach by the connection file, the launcher by the plan."""
        connection = make_connection(self.identity, endpoints)
        connection.write(self.folder.connection)
        make_operator_file(self.identity, endpoints).write(self.folder.operator)
        plan = launcher_link.Plan(
            study=self.identity.study,
            incarnation=self.identity.incarnation,
            output_dir=str(self.folder.path),
            connection=connection,
            simulations=tuple(roster.plan),
        )
        self.receiver.post(mailbox.BeginStudy(plan=plan))

    def _make_launcher(self, ipc_folder: Path) -> LauncherProcess:
        return LauncherProcess(
            self.folder.study,
            launcher_address(ipc_folder),
            log=self.folder.path / "logs" / "launcher.log",
            simulations=self.folder.simulations,
        )


def launcher_address(ipc_folder: Path) -> str:
    """The address on which the launcher listens for rank 0."""
    return f"ipc://{ipc_folder}/launcher"
