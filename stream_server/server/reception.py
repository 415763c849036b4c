"""How samples come in: one rank's receiver, and on rank 0 the roster and the launcher, built and run together."""

import logging
import socket
import tempfile
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Self

from stream_server.buffers import Buffer
from stream_server.client_api.connection import ConnectionFile, Security
from stream_server.config import StudyConfig
from stream_server.errors import RankLost
from stream_server.launcher import link
from stream_server.server import parts
from stream_server.server.access import Access
from stream_server.server.design import ParameterDesign, write_csv
from stream_server.server.endpoints import Endpoints, ReceiverSettings
from stream_server.server.identity import Identity
from stream_server.server.launcher_process import LauncherProcess
from stream_server.server.lobby import StudyFacts
from stream_server.server.output import OutputFolder
from stream_server.server.plan import Plan
from stream_server.server.ranks import Ranks
from stream_server.server.receiver import Receiver, ReceptionAccount, StopStudy
from stream_server.server.roster import Roster
from stream_server.server.tracker import Tracker
from stream_server.server.training.stop import StopRequests
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
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.identity = identity
        self.plan = plan
        self.design = design
        self.buffer = buffer
        self.validation_store = ValidationStore(config.validation.simulations)
        self._receiver: Receiver | None = None
        self.roster: Roster | None = None
        self.launcher: LauncherProcess | None = None
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

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ipc_folder = self._make_ipc_folder(stack)
            self._receiver = self._make_receiver(ipc_folder)
            stack.callback(self.receiver.close)
            endpoints = self._meet()
            stack.enter_context(self.receiver)
            if self.roster is not None:
                self._announce(self.roster, endpoints[0])
                self.launcher = stack.enter_context(self._make_launcher(ipc_folder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def end(self, stops: StopRequests) -> None:
        """Let the simulations go. The sockets of all ranks stay open until their last process has ended."""
        if self.launcher is not None:
            grace_s = self.config.simulation.timeout_s if stops.agreed is None else STOP_GRACE_S
            self.receiver.post(StopStudy(reason=stops.text or "the study has ended", grace_s=grace_s))
            _wait_for(self.launcher, stops, grace_s + LEAVE_S)
        self.ranks.barrier()
        if self.receiver.error is not None:
            raise RankLost("the receiver failed after the last batch") from self.receiver.error

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

    def _meet(self) -> list[Endpoints]:
        gathered = self.ranks.gather(self.receiver.bind().to_dict())
        endpoints = [Endpoints.from_dict(plain) for plain in self.ranks.broadcast(gathered)]
        if self.ranks.rank == 0:
            self.roster = self._make_roster(endpoints)
            write_csv(self.folder.parameters, self.roster.parameters)
        self.receiver.meet(endpoints, self.roster)
        return endpoints

    def _make_roster(self, endpoints: list[Endpoints]) -> Roster:
        config, design = self.config, self.design
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

    def _announce(self, roster: Roster, endpoints: Endpoints) -> None:
        """Tell where the study is: those who attach by the connection file, the launcher by the plan."""
        keys, security = self.identity, None
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
        self.receiver.post(
            link.Plan(
                study=keys.study,
                epoch=keys.epoch,
                output_dir=str(self.folder.path),
                connection=asdict(connection),
                simulations=tuple(roster.plan),
            )
        )

    def _make_launcher(self, ipc_folder: Path) -> LauncherProcess:
        return LauncherProcess(
            self.folder.study,
            launcher_address(ipc_folder),
            log=self.folder.path / "logs" / "launcher.log",
            simulations=self.folder.simulations,
        )


def launcher_address(ipc_folder: Path) -> str:
    """Where the launcher listens for rank 0."""
    return f"ipc://{ipc_folder}/launcher"


def _wait_for(launcher: LauncherProcess, stops: StopRequests, timeout_s: float) -> None:
    """Wait until the last job has ended; a signal that comes meanwhile ends the waiting, and so the jobs."""
    was_asked = stops.num_requests
    start = time.monotonic()
    told = False
    while not launcher.wait(WAIT_SLICE_S) and stops.num_requests == was_asked:
        waited_s = time.monotonic() - start
        if waited_s > timeout_s:
            return
        if waited_s > PATIENCE_S and not told:
            told = True
            log.warning("all is trained, but simulations still run: waiting for them to end (Ctrl-C ends them)")
