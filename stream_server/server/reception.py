"""How samples come in: one rank's receiver, and on rank 0 the roster and the launcher, run together."""

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.errors import ProducerFailed, RankLost
from stream_server.failpoints import failpoint
from stream_server.launcher import link
from stream_server.server import events
from stream_server.server.commands import Begin, Committed, StopStudy
from stream_server.server.design import ParameterDesign, write_csv
from stream_server.server.endpoints import Endpoints, ReceiverSettings
from stream_server.server.identity import Identity
from stream_server.server.launcher_process import LauncherProcess
from stream_server.server.output import OutputFolder
from stream_server.server.plan import Plan
from stream_server.server.ranks import Ranks
from stream_server.server.receiver import Receiver
from stream_server.server.reception_parts import (
    make_access,
    make_connection,
    make_ipc_folder,
    make_roster,
    make_tracker,
)
from stream_server.server.reception_restore import agree_on_finished, take_back, take_note
from stream_server.server.reception_snapshot import ReceptionAccount, ReceptionSnapshot
from stream_server.server.record.facts import RecordFacts
from stream_server.server.record.recorder import Recorder
from stream_server.server.restore import RankRestore
from stream_server.server.roster import Roster
from stream_server.server.start import Start
from stream_server.server.training.stop import StopReason, StopRequests
from stream_server.server.validation_store import ValidationStore

STOP_GRACE_S = 10.0
LEAVE_S = 20.0
WAIT_SLICE_S = 0.2
PATIENCE_S = 3.0

log = logging.getLogger(__name__)


class Reception:
    """Receives samples into `buffer` and `validation_store` while the `with` block lasts. Collective; main thread.

    `roster` and `launcher` are rank 0's.
    """

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        folder: OutputFolder,
        identity: Identity,
        *,
        plan: Plan,
        design: ParameterDesign,
        buffer: Buffer,
        start: Start,
        restored: RankRestore | None = None,
        roster_state: Mapping[str, Any] | None = None,
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
        self.validation_store = ValidationStore(config.validation.simulations)
        self._receiver: Receiver | None = None
        self.roster: Roster | None = None
        self.launcher: LauncherProcess | None = None
        self.recorder: Recorder | None = None
        self._stack = ExitStack()

    @property
    def receiver(self) -> Receiver:
        """This rank's receiver, once it was made."""
        assert self._receiver is not None
        return self._receiver

    @property
    def account(self) -> ReceptionAccount | None:
        """What this rank has received; None before there was a receiver."""
        return None if self._receiver is None else self._receiver.account()

    def count(self, stack: ExitStack) -> None:
        """Nobody knows before the simulations have run."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ipc_folder = make_ipc_folder(self.ranks, stack)
            receiver = self._receiver = self._make_receiver(ipc_folder)
            if self.restored is not None:
                take_back(self.restored, receiver, self.buffer, self.validation_store, self.ranks)
            # Where all types are known, a rank without the memory is noticed before any simulation runs.
            receiver.intake.allocate()
            if self.config.checkpoint.record:
                self.recorder = receiver.intake.recorder = stack.enter_context(self._make_recorder(receiver))
            stack.callback(self.receiver.close)
            endpoints = self._meet()
            if self.restored is not None:
                finished = agree_on_finished(self.restored, self.ranks)
                if self.roster is not None and self.roster_state is not None:
                    self.roster.load_state_dict(self.roster_state, finished)
                over = self.ranks.broadcast(None if self.roster is None else self.roster.over())
                take_note(over, receiver, self.buffer, self.validation_store)
            failpoint("server.before_announcement")
            stack.enter_context(self.receiver)
            if self.roster is not None:
                self._announce(self.roster, endpoints[0])
                if self.start.link is None:
                    self.launcher = stack.enter_context(self._make_launcher(ipc_folder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze what this rank has received so far."""
        return self.receiver.snapshot()

    def committed(self, snapshot: ReceptionSnapshot, generation: int, batches: int) -> None:
        """What was in a snapshot is in a committed generation: the clients may forget it."""
        self.receiver.post(Committed(marks=snapshot.marks, generation=generation, batches=batches))

    @property
    def num_received(self) -> int:
        """How many steps this rank has accepted or rejected, ever."""
        return self.receiver.num_received

    @property
    def num_missing(self) -> int:
        """How many steps of training simulations will never come, less those of simulations that were redrawn."""
        return 0 if self.roster is None else self.roster.num_missing

    @property
    def has_pressure(self) -> bool:
        """Some simulation may soon have to forget steps that are in no checkpoint yet."""
        return self.receiver.has_pressure

    @property
    def simulations(self) -> Roster | None:
        """How the simulations fare. Rank 0."""
        return self.roster

    @property
    def receive_s(self) -> float:
        """How long this rank has spent receiving."""
        return 0.0 if self._receiver is None else self._receiver.receive_s

    @property
    def num_left(self) -> int:
        """Whatever is accepted is in the buffer, or waits for it."""
        return 0

    @property
    def warnings(self) -> list[str]:
        """What went wrong while the study went on."""
        error = None if self.recorder is None else self.recorder.error
        if error is None and (self.recorder is None or not self.recorder.is_over):
            return []
        return [f"not all samples are recorded: {error or 'the recording had ended in an earlier epoch'}"]

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        """The parameters of a simulation that has begun, in the order of study.json."""
        return self.receiver.parameters[simulation]

    def fill(self) -> None:
        """The receiver fills the buffer."""

    def counts(self) -> tuple[dict[str, int], int]:
        """How many simulations are in each state, and how many samples all ranks have. Rank 0."""
        assert self.roster is not None
        with self.receiver.turn:
            return self.roster.counts(), self.roster.num_settled

    @property
    def awaited(self) -> str:
        """What must come from outside for the study to go on, "" if nothing must. Rank 0."""
        assert self.roster is not None
        with self.receiver.turn:
            return self.roster.awaited

    def look(self) -> list[events.Event]:
        """What has happened since the last call. A launcher of ours that was killed is started again.

        Raises:
            RankLost: it ended by itself although nobody told it to.
        """
        if self.launcher is not None and (exit_code := self.launcher.exit_code) is not None:
            if exit_code >= 0:
                raise RankLost(
                    f"the launcher ended with exit code {exit_code}; logs/launcher.log in the output folder says why"
                )
            log.warning("the launcher was killed; another one takes over what runs")
            self.launcher.restart()
        found: list[events.Event] = []
        with suppress(Empty):
            while True:
                found.append(self.receiver.events.get_nowait())
        return found

    def end(self, stops: StopRequests) -> None:
        """Let the simulations go. The sockets of all ranks stay open until their last process has ended."""
        grace_s = self.config.simulation.timeout_s if stops.agreed is None else STOP_GRACE_S
        if self.roster is not None:
            self.receiver.post(StopStudy(reason=stops.text or "the study has ended", grace_s=grace_s))
        self._wait_for_jobs(stops, grace_s + LEAVE_S)
        if self.roster is not None:
            self.receiver.post(link.Leaving())
        self.ranks.barrier()
        if self.receiver.error is not None:
            raise ProducerFailed("the receiver failed after the last batch") from self.receiver.error

    def _make_receiver(self, ipc_folder: Path) -> Receiver:
        link_address = self.start.link or launcher_address(ipc_folder)
        settings = ReceiverSettings(
            ipc_folder=ipc_folder,
            host=socket.gethostname(),
            interface=self.config.network.interface or "*",
            ports=self.config.network.ports,
            link=link_address if self.ranks.rank == 0 else None,
            nonfinite=self.config.training.nonfinite,
        )
        return Receiver(
            rank=self.ranks.rank,
            num_ranks=self.ranks.size,
            buffer=self.buffer,
            tracker=make_tracker(self.config, self.plan, self.identity, self.ranks, claim=self.buffer.claim),
            validation=self.validation_store,
            access=make_access(self.identity),
            settings=settings,
        )

    def _make_recorder(self, receiver: Receiver) -> Recorder:
        position, gone = (0, {}) if self.restored is None else self.restored.recorded(self.ranks.rank, self.ranks.size)
        return Recorder(
            self.folder.record,
            RecordFacts.of(self.config, self.design.names, self.ranks.size),
            rank=self.ranks.rank,
            epoch=self.identity.epoch,
            position=position,
            rows=self.buffer.slots,
            parameters_of=receiver.parameters.__getitem__,
            gone=gone,
        )

    def _meet(self) -> list[Endpoints]:
        gathered = self.ranks.gather(self.receiver.bind().to_dict())
        endpoints = [Endpoints.from_dict(plain) for plain in self.ranks.broadcast(gathered)]
        if self.ranks.rank == 0:
            self.roster = make_roster(self.config, self.design, self.identity, endpoints)
            write_csv(self.folder.parameters, self.roster.parameters)
        self.receiver.meet(endpoints, self.roster)
        return endpoints

    def _announce(self, roster: Roster, endpoints: Endpoints) -> None:
        """Tell where the study is: those who attach by the connection file, the launcher by the plan."""
        connection = make_connection(self.identity, endpoints)
        connection.write(self.folder.connection)
        plan = link.Plan(
            study=self.identity.study,
            epoch=self.identity.epoch,
            output_dir=str(self.folder.path),
            connection=asdict(connection),
            simulations=tuple(roster.plan),
        )
        self.receiver.post(Begin(plan=plan))

    def _wait_for_jobs(self, stops: StopRequests, timeout_s: float) -> None:
        """Wait until rank 0 sees the last job end; a signal that it gets meanwhile ends the waiting, and so the jobs.

        The ranks meet all the time, however long that takes.
        """
        was_asked = stops.num_requests
        start = time.monotonic()
        told = False
        is_over = False
        while not is_over:
            waited_s = time.monotonic() - start
            sees_end = self.roster is not None and (
                self._jobs_have_ended() or stops.num_requests != was_asked or waited_s > timeout_s
            )
            if waited_s > PATIENCE_S and self.roster is not None and not told:
                told = True
                log.warning("%s: waiting for them to end (Ctrl-C ends them)", still_running(stops))
            is_over = self.ranks.all_reduce(np.array([float(sees_end)]))[0] > 0

    def _jobs_have_ended(self) -> bool:
        if self.launcher is not None:
            return self.launcher.wait(WAIT_SLICE_S)
        try:
            event = self.receiver.events.get(timeout=WAIT_SLICE_S)
        except Empty:
            return False
        return isinstance(event, events.FromLauncher) and isinstance(event.message, link.Bye)

    def _make_launcher(self, ipc_folder: Path) -> LauncherProcess:
        return LauncherProcess(
            self.folder.study,
            launcher_address(ipc_folder),
            log=self.folder.path / "logs" / "launcher.log",
            simulations=self.folder.simulations,
        )


def still_running(stops: StopRequests) -> str:
    """Say why nothing more is trained although simulations still run."""
    if stops.agreed in (None, StopReason.UNEVEN):
        return "all is trained, but simulations still run"
    return f"the training has stopped ({stops.text}), but simulations still run"


def launcher_address(ipc_folder: Path) -> str:
    """Where the launcher listens for rank 0."""
    return f"ipc://{ipc_folder}/launcher"
