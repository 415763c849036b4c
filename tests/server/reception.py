"""Receivers of one or more server ranks in this process: real sockets on loopback, real buffers, the real client."""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from stream_server.buffers import Buffer, Fifo, Policy, Slots
from stream_server.client_api import connect, wire
from stream_server.client_api.connection import ConnectionFile, Security
from stream_server.client_api.messages import FieldSpec, Message, Routing, TimeSteps
from stream_server.client_api.simulation import Simulation
from stream_server.errors import Closed
from stream_server.launcher import link
from stream_server.server import events
from stream_server.server.access import Access, KeyPair
from stream_server.server.endpoints import Endpoints, ReceiverSettings
from stream_server.server.lobby import StudyFacts
from stream_server.server.receiver import Receiver
from stream_server.server.roster import Roster
from stream_server.server.tracker import Tracker
from stream_server.server.validation_store import ValidationStore

DEADLINE_S = 20.0
STUDY = "study-1"
EPOCH = 3
HERE = socket.gethostname()
LOOPBACK = "127.0.0.1"


@dataclass(kw_only=True)
class StudyShape:
    """What varies between the tests."""

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


class Rank:
    """One server rank: its receiver, and what a training thread would draw."""

    def __init__(self, shape: StudyShape, rank: int, folder: Path, keys: KeyPair, attaching: KeyPair) -> None:
        room = shape.credit * shape.at_once
        slots = Slots({spec.name: spec.shape for spec in shape.fields}, shape.capacity + room + shape.held)
        self.buffer = Buffer(shape.policy(shape.capacity), slots)
        self.validation = ValidationStore(shape.num_validation)
        self.access = Access(keys, attaching=attaching.public) if shape.secure else None
        self.tracker = Tracker(
            rank=rank,
            num_ranks=shape.num_ranks,
            routing=shape.routing,
            time_steps=shape.time_steps,
            fields=shape.fields,
            study=STUDY,
            epoch=EPOCH,
            credit=shape.credit,
            room=room,
            claim=self.buffer.claim,
        )
        self.receiver = Receiver(
            rank=rank,
            num_ranks=shape.num_ranks,
            buffer=self.buffer,
            tracker=self.tracker,
            validation=self.validation,
            access=self.access,
            settings=ReceiverSettings(
                ipc_folder=folder,
                # Ranks with keys take each other for strangers on other nodes, and use TCP.
                host=f"node-{rank}" if shape.secure else HERE,
                interface=LOOPBACK,
                link=f"ipc://{folder / 'l'}" if rank == 0 else None,
                nonfinite=shape.nonfinite,
            ),
        )
        self.drawn: list[tuple[int, int]] = []
        self.rows: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        self.seen: list[events.Event] = []

    def drain(self, num: int = 1) -> None:
        """Draw until the stream has ended; raises what the stream ended with."""
        slots = self.buffer.slots
        while True:
            try:
                draw = self.buffer.draw(num, DEADLINE_S)
            except Closed:
                return
            if draw is None:
                raise TimeoutError(f"nothing to draw on rank {self.receiver.rank} for {DEADLINE_S} s")
            rows = self.buffer.gather(draw)
            for i, slot in enumerate(draw.slots):
                key = (int(slots.simulation_ids[slot]), int(slots.time_steps[slot]))
                self.drawn.append(key)
                self.rows[key] = {name: values[i] for name, values in rows.items()}
            self.buffer.release(draw)

    def wait_for(self, kind: type[events.Event]) -> events.Event:
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
    ranks: list[Rank]
    endpoints: list[Endpoints]
    roster: Roster
    launcher: link.Link
    keys: KeyPair
    attaching: KeyPair

    @property
    def first(self) -> Rank:
        return self.ranks[0]

    def launch(self, simulation: int, attempt: int = 0, key: KeyPair | None = None) -> ConnectionFile:
        """Begin an attempt; returns the connection file of its client ranks."""
        public = None if key is None else key.public
        self.launcher.send(link.Attempt(simulation=simulation, attempt=attempt, public_key=public))
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
            epoch=EPOCH,
            host=HERE,
            control=self.endpoints[0].control,
            simulation=simulation,
            attempt=attempt,
            security=security,
        )

    def from_server(self, kind: type[link.ToLauncher]) -> link.ToLauncher:
        """The next word of this kind to the launcher."""
        give_up_at = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up_at:
            self.launcher.wait(0.1)
            for message in self.launcher.receive():
                if isinstance(message, kind):
                    return message
        raise TimeoutError(f"the launcher heard no {kind.__name__}")

    def run(self, simulation: int, attempt: int = 0, *, rank: int = 0, num_ranks: int = 1) -> Simulation:
        """Connect as a client rank."""
        return connect(self.connection(simulation, attempt), rank=rank, num_ranks=num_ranks, timeout_s=DEADLINE_S)


@contextmanager
def reception(shape: StudyShape) -> Iterator[Reception]:
    """Start the receivers of all ranks; at the end everything is joined and closed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = stack.enter_context(link.Link(f"ipc://{folder / 'l'}"))
        keys, attaching = KeyPair.make(), KeyPair.make()
        ranks = [Rank(shape, rank, folder, keys, attaching) for rank in range(shape.num_ranks)]
        endpoints = [rank.receiver.bind() for rank in ranks]
        facts = StudyFacts(
            study=STUDY,
            epoch=EPOCH,
            endpoints=tuple(it.data for it in endpoints),
            time_steps=shape.time_steps,
            fields=shape.fields,
            routing=shape.routing,
        )
        parameters = [{"x": float(i)} for i in range(shape.num_simulations)]
        roster = Roster(facts, parameters, num_planned=shape.num_simulations, num_held_out=0, num_ranks=shape.num_ranks)
        for rank in ranks:
            rank.receiver.meet(endpoints, roster if rank.receiver.rank == 0 else None)
        for rank in ranks:
            stack.enter_context(rank.receiver)
        plan = link.Plan(study=STUDY, epoch=EPOCH, output_dir="", connection={}, simulations=())
        ranks[0].receiver.post(plan)
        study = Reception(
            shape=shape,
            ranks=ranks,
            endpoints=endpoints,
            roster=roster,
            launcher=launcher,
            keys=keys,
            attaching=attaching,
        )
        study.from_server(link.Plan)
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
