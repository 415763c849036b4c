"""Receivers of one or more server ranks in this process: real sockets on loopback, real buffers, the real client."""

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from stream_server.buffers import Buffer, Fifo, Policy, Slots, num_slots_to_load
from stream_server.client_api import connect
from stream_server.client_api.simulation import Simulation
from stream_server.errors import Closed
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.messages import launcher_link, wire
from stream_server.messages.client import Away, FieldSpec, Message, Routing, TimeSteps, Welcome
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.checkpoint.folder import STUDY as STUDY_STATE
from stream_server.server.checkpoint.restore import RankRestore, restore_rank
from stream_server.server.intake import mailbox
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.ledger import finished_simulations
from stream_server.server.intake.mailbox import BeginStudy, CheckpointCommitted
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.receiver import Receiver
from stream_server.server.reception.sockets import Endpoints, ReceiverSettings
from stream_server.server.simulations.roster import Roster
from stream_server.storage.plain_state import read_state
from tests.support.connections import NOWHERE
from tests.support.saved_ranks import write_rank
from tests.support.timing import Deadline

DEADLINE_S = 60.0
STUDY = "study-1"
INCARNATION = 3
HERE = socket.gethostname()
LOOPBACK = "127.0.0.1"


@dataclass(kw_only=True)
class StudyShape:
    """The settings that vary between the tests."""

    fields: tuple[FieldSpec, ...] = (FieldSpec(name="u", shape=(4,), dtype="<f8"),)
    time_steps: TimeSteps = field(default_factory=lambda: TimeSteps(num=6))
    routing: Routing = Routing.STEPS
    num_ranks: int = 1
    num_simulations: int = 1
    num_validation: int = 0
    capacity: int = 100
    policy: Callable[[int], Policy] = lambda capacity: Fifo(capacity=capacity)
    credit: int = 4
    at_once: int = 3
    held: int = 2
    nonfinite: str = "reject"
    secure: bool = False
    address: str = LOOPBACK


class Rank:
    """One server rank: its receiver, and what a training thread would draw."""

    def __init__(
        self,
        shape: StudyShape,
        rank: int,
        folder: Path,
        keys: KeyPair,
        attaching: KeyPair,
        operator: KeyPair,
        *,
        incarnation: int = INCARNATION,
        restored: RankRestore | None = None,
    ) -> None:
        room = shape.credit * shape.at_once
        num_slots = shape.capacity + room + shape.held
        if restored is not None:
            num_slots = num_slots_to_load(restored.buffer, capacity=shape.capacity, planned=num_slots)
        step, static = (
            {spec.name: spec.shape for spec in shape.fields if spec.is_static is is_static}
            for is_static in (False, True)
        )
        ragged = [spec.name for spec in shape.fields if spec.ragged]
        slots = Slots(step, num_slots, static, ragged=ragged)
        self.buffer = Buffer(shape.policy(shape.capacity), slots)
        self.validation = ValidationStore(shape.num_validation, ragged=ragged)
        self.access = CurveAccess(
            keys,
            attaching=attaching.public if shape.secure else None,
            operator=operator.public,
            encrypts_tcp=shape.secure,
        )
        self.intake = Intake(
            IntakeState(
                rank=rank,
                dealing=Dealing(shape.routing, shape.num_ranks),
                time_steps=shape.time_steps,
                fields=shape.fields,
                study=STUDY,
                incarnation=incarnation,
                credit=shape.credit,
            ),
            buffer=self.buffer,
            validation=self.validation,
            credit_slots=room,
            nonfinite=shape.nonfinite,
        )
        self.receiver = Receiver(
            buffer=self.buffer,
            intake=self.intake,
            access=self.access,
            settings=ReceiverSettings(
                ipc_folder=folder,
                # Ranks with keys take each other for strangers on other nodes, and use TCP.
                host=f"node-{rank}" if shape.secure else HERE,
                address=shape.address,
                link=f"ipc://{folder / 'l'}" if rank == 0 else None,
            ),
        )
        self.drawn: list[tuple[int, int]] = []
        self.rows: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        self.seen: list[mailbox.Event] = []
        if restored is not None:
            restored.load(self.receiver.parts)
            restored.into_buffer(self.buffer)
            self.receiver.intake.restore_waiting(restored.waiting)
            restored.into_store(self.validation)

    def drain(self, num: int = 1) -> None:
        """Draw until the stream has ended; raises what the stream ended with."""
        while True:
            try:
                self.draw(num)
            except Closed:
                return

    def draw(self, num: int = 1) -> None:
        """Draw one batch; raises what the stream ended with."""
        slots = self.buffer.slots
        draw = self.buffer.draw(num, DEADLINE_S)
        if draw is None:
            raise TimeoutError(f"nothing to draw on rank {self.receiver.rank} for {DEADLINE_S} s")
        rows = self.buffer.gather(draw)
        for i, slot in enumerate(draw.slots):
            key = (int(slots.simulation_ids[slot]), int(slots.time_steps[slot]))
            self.drawn.append(key)
            self.rows[key] = {name: values[i] for name, values in rows.items()} | slots.statics[key[0]]
        self.buffer.release(draw)

    def wait_for(self, kind: type[mailbox.Event]) -> mailbox.Event:
        """The next event of this kind; the others are kept in `seen`."""
        while True:
            event = self.receiver.events.get(timeout=DEADLINE_S)
            self.seen.append(event)
            if isinstance(event, kind):
                return event


@dataclass(kw_only=True)
class Reception:
    """A study that receives, and the launcher that stands for its simulations."""

    shape: StudyShape
    incarnation: int
    ranks: list[Rank]
    endpoints: list[Endpoints]
    roster: Roster
    launcher: ServerConnection
    keys: KeyPair
    attaching: KeyPair
    operator: KeyPair
    unread: list[launcher_link.ToLauncher] = field(default_factory=list)

    @property
    def first(self) -> Rank:
        return self.ranks[0]

    def launch(
        self, simulation: int, attempt: int = 0, key: KeyPair | None = None, *, goes_on: bool = False
    ) -> ConnectionFile:
        """Begin an attempt, or say that one goes on; returns the connection file of its client ranks."""
        public = None if key is None else key.public
        message = launcher_link.Attempt(simulation=simulation, attempt=attempt, public_key=public, goes_on=goes_on)
        self.launcher.send(message)
        return self.connection(simulation, attempt, key)

    def connection(self, simulation: int, attempt: int = 0, key: KeyPair | None = None) -> ConnectionFile:
        """A connection file; with a key it leads over TCP."""
        security = None
        if key is not None:
            security = Security(
                server_public_key=self.keys.public, client_public_key=key.public, client_secret_key=key.secret
            )
        return ConnectionFile(
            study=STUDY,
            incarnation=self.incarnation,
            host=HERE,
            control=self.endpoints[0].control,
            simulation=simulation,
            attempt=attempt,
            security=security,
        )

    def from_server(self, kind: type[launcher_link.ToLauncher]) -> launcher_link.ToLauncher:
        """The next word of this kind to the launcher; those of other kinds stay unread."""
        deadline = Deadline(DEADLINE_S)
        while not deadline.has_passed:
            for i, message in enumerate(self.unread):
                if isinstance(message, kind):
                    return self.unread.pop(i)
            self.launcher.wait(0.1)
            self.unread += self.launcher.receive()
        raise TimeoutError(f"the launcher heard no {kind.__name__}")

    def save(self, folder: Path) -> "SavedReception":
        """Take a snapshot of all ranks and write it, as a checkpoint does. The tests draw in this thread, if at all."""
        taken = [rank.receiver.snapshot() for rank in self.ranks]
        for number, (rank, snapshot) in enumerate(zip(self.ranks, taken, strict=True)):
            write_rank(folder, snapshot, rank.buffer, rank=number, num_ranks=len(self.ranks))
        return SavedReception(folder=folder, taken=taken, drawn=[key for rank in self.ranks for key in rank.drawn])

    def commit(self, saved: "SavedReception") -> None:
        """Report that the saved state is in a committed checkpoint."""
        for rank, taken in zip(self.ranks, saved.taken, strict=True):
            rank.receiver.post(CheckpointCommitted(received_marks=taken.received_marks, checkpoint=1, batches=0))

    def run(self, simulation: int, attempt: int = 0, *, rank: int = 0, num_ranks: int = 1) -> Simulation:
        """Connect as a client rank."""
        return connect(self.connection(simulation, attempt), rank=rank, num_ranks=num_ranks, timeout_s=DEADLINE_S)


@dataclass(frozen=True, kw_only=True)
class SavedReception:
    """A checkpoint on disk; `drawn` are the steps that were trained before it."""

    folder: Path
    taken: list[ReceptionSnapshot]
    drawn: list[tuple[int, int]]

    def restore(self, shape: StudyShape) -> list[RankRestore]:
        """The state that each rank of a continued study restores."""
        return [
            restore_rank(
                self.folder,
                incarnation=INCARNATION,
                num_saved=len(self.taken),
                rank=rank,
                dealing=Dealing(shape.routing, shape.num_ranks),
                policy=type(shape.policy(1)),
                seed=(1, 2),
            )
            for rank in range(shape.num_ranks)
        ]

    def agree_on_ends(self, ranks: Sequence[Rank], roster: Roster) -> None:
        """All ranks learn which simulations have ended."""
        complete = [rank.receiver.intake.state.ledger.complete() for rank in ranks]
        roster.load_state_dict(read_state(self.folder / STUDY_STATE)["roster"], finished_simulations(complete))
        ends = roster.ended()
        for rank in ranks:
            rank.receiver.intake.restore_ended(finished=ends["finished"], invalid=ends["invalid"])
            if not ends["final"]:
                rank.buffer.reopen()


@contextmanager
def reception(
    shape: StudyShape,
    *,
    incarnation: int = INCARNATION,
    saved: SavedReception | None = None,
    before_start: Callable[[Reception], None] = lambda study: None,
) -> Iterator[Reception]:
    """Start the receivers of all ranks, which go on from what was `saved`; in the end all is joined and closed.

    The sockets are open when `before_start` is called, but nobody listens yet.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = stack.enter_context(ServerConnection(f"ipc://{folder / 'l'}"))
        keys, attaching, operator = KeyPair.make(), KeyPair.make(), KeyPair.make()
        restored = [None] * shape.num_ranks if saved is None else saved.restore(shape)
        ranks = [
            Rank(shape, rank, folder, keys, attaching, operator, incarnation=incarnation, restored=part)
            for rank, part in enumerate(restored)
        ]
        endpoints = [rank.receiver.bind() for rank in ranks]
        facts = Welcome(
            study=STUDY,
            simulation=0,
            attempt=0,
            parameters={},
            incarnation=incarnation,
            endpoints=tuple(it.data for it in endpoints),
            time_steps=shape.time_steps,
            fields=shape.fields,
            routing=shape.routing,
            window_bytes=2**26,
            if_server_away=Away.WAIT,
            wait_s=600.0,
        )
        parameters = [{"x": float(i)} for i in range(shape.num_simulations)]
        roster = Roster(facts, parameters, num_planned=shape.num_simulations, num_held_out=0, num_ranks=shape.num_ranks)
        for rank in ranks:
            rank.receiver.meet(endpoints, roster if rank.receiver.rank == 0 else None)
        if saved is not None:
            saved.agree_on_ends(ranks, roster)
        study = Reception(
            shape=shape,
            incarnation=incarnation,
            ranks=ranks,
            endpoints=endpoints,
            roster=roster,
            launcher=launcher,
            keys=keys,
            attaching=attaching,
            operator=operator,
        )
        before_start(study)
        for rank in ranks:
            stack.enter_context(rank.receiver)
        plan = launcher_link.Plan(
            study=STUDY, incarnation=incarnation, output_dir="", connection=NOWHERE, simulations=()
        )
        ranks[0].receiver.post(BeginStudy(plan=plan))
        study.from_server(launcher_link.Plan)
        yield study


class Crew:
    """Threads of a test; leaving waits for them and raises the first error of any."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self) -> None:
        """Wait for all; a hang is an error."""
        for thread in self.threads:
            thread.join(DEADLINE_S)
            if thread.is_alive():
                raise TimeoutError("a thread hangs")
        if self.errors:
            raise self.errors[0]


class RawClient:
    """A socket that may say anything, byte by byte."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(DEADLINE_S * 1000)
        self.socket.connect(address)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.context.term()

    def say(self, message: Message, payload: Sequence[wire.Frame] = ()) -> None:
        self.socket.send_multipart(wire.encode(message, payload))  # type: ignore[arg-type]

    def hear(self) -> Message:
        return wire.decode(self.socket.recv_multipart()[0])

    def ask(self, message: Message, payload: Sequence[wire.Frame] = ()) -> Message:
        self.say(message, payload)
        return self.hear()
