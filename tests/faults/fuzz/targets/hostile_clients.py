"""Hostile clients at the intake of a server rank: it is bounded, loses no slot, and trains nothing that was not sent.

The script says what the clients send, byte by byte, when the turns end, and when the launcher and rank 0 say something.
"""

import numpy as np

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.messages import notices, wire
from stream_server.messages.client import FieldSpec, Message, Opened, Ping, Routing, TimeSteps
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.dispatcher import Dispatcher
from tests.fakes.hostile_messages import (
    FIELDS,
    INCARNATION,
    MESH,
    ROWS,
    STUDY,
    Peer,
    Script,
    allowed,
    mesh_blocks,
    mesh_value,
    opening,
    u_block,
)
from tests.faults.fuzz.target import Target
from tests.support.intake_ranks import Frames

NUM_PEERS, NUM_SIMULATIONS, NUM_HELD_OUT = 4, 4, 1
CAPACITY, CREDIT, ROOM, HELD = 5, 3, 6, 2
STATES = ("finished", "failed", "invalid")


class Server:
    """One server rank, of which all is real but the sockets, and what its clients ever announced."""

    def __init__(self, script: Script, *, mesh: FieldSpec | None) -> None:
        self.script = script
        self.mesh = mesh
        self.meshes: dict[int, list[float]] = {}
        shared = () if mesh is None else (mesh,)
        num_ranks, routing = 1 + script.one_of(2), list(Routing)[script.one_of(2)]
        self.drawn: set[tuple[int, int]] = set()
        self.withdrawn: set[int] = set()
        self.buffer = Buffer(
            Fifo(capacity=CAPACITY),
            Slots(
                {it.name: it.shape for it in FIELDS},
                CAPACITY + ROOM + HELD,
                {it.name: it.shape for it in shared},
                ragged=[it.name for it in shared if it.ragged],
            ),
        )
        self.intake = Intake(
            IntakeState(
                rank=script.one_of(num_ranks),
                dealing=Dealing(routing, num_ranks),
                time_steps=TimeSteps(num=8 if script.one_of(2) else None),
                fields=(*FIELDS, *shared),
                study=STUDY,
                incarnation=INCARNATION,
                credit=CREDIT,
            ),
            buffer=self.buffer,
            validation=ValidationStore(NUM_HELD_OUT),
            credit_slots=ROOM,
        )
        self.dispatcher = Dispatcher(
            intake=self.intake, access=CurveAccess(KeyPair.make()), reply=self._reply, tell_main=lambda event: None
        )
        for simulation in range(NUM_SIMULATIONS - 1):
            self.dispatcher.apply(notices.AttemptNotice(simulation=simulation, attempt=0, parameters={}))
        self.peers = [self._peer(i, num_client_ranks=1 + script.one_of(2)) for i in range(NUM_PEERS)]
        for peer in self.peers:
            self._hear(peer, peer.said)

    def step(self) -> None:
        """The next thing happens."""
        script, peer = self.script, self.peers[self.script.one_of(NUM_PEERS)]
        match script.one_of(16):
            case 0:
                self._hear(peer, peer.open(script))
            case 1:
                self.dispatcher.end_turn()
                self.draw(CAPACITY)
            case 2 | 3 | 4 | 5 | 6 | 7 | 8:
                self._hear(peer, *peer.data(script))
            case 9:
                self._hear(peer, peer.end(script))
            case 10:
                self._hear(peer, Ping())
            case 11:
                self.dispatcher.hear(peer.name, script.take(script.one_of(80)), Frames([]), None)
            case 12:
                self.dispatcher.end_turn()
            case 13:
                self.dispatcher.end_turn()
                self.draw(script.one_of(3))
            case 14:
                self._notice(script.one_of(NUM_SIMULATIONS))
            case 15:
                self.intake.checkpoint_taken()
                acknowledgements = self.dispatcher.acknowledgements
                acknowledgements.acknowledge_durable(acknowledgements.received_marks())
        self.check()

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        assert self.intake.num_under_way <= ROOM
        for connection in self.dispatcher.connections.values():
            assert connection.durable <= connection.received <= connection.next_sequence
            assert sum(message.num_steps for message in connection.pending) <= CREDIT + CAPACITY + ROOM

    def draw(self, num: int) -> None:
        """Train so many samples, if there are as many."""
        for _ in range(num):
            if not self.buffer.population:
                return
            draw = self.buffer.draw(1, 0.0)
            assert draw is not None
            rows = self.buffer.gather(draw)
            [slot] = draw.slots.tolist()
            slots = self.buffer.slots
            self._look_at((int(slots.simulation_ids[slot]), int(slots.time_steps[slot])), rows["u"][0])
            self.buffer.release(draw)

    def end(self) -> None:
        """All simulations end, all is trained, and every slot is free again."""
        for simulation in range(NUM_SIMULATIONS):
            self.dispatcher.apply(notices.Terminal(simulation=simulation, state="failed"))
        for _ in range(CAPACITY + ROOM):
            self.dispatcher.end_turn()
            self.draw(CAPACITY)
        assert not self.intake.num_under_way
        slots = self.buffer.slots
        assert slots.num_free + len(self.intake.settlement._reserved_slots) == slots.num_slots, "a slot was lost"
        self.intake.state_dict()
        self.dispatcher.apply(notices.StopNotice(reason="over"))

    def _look_at(self, key: tuple[int, int], row: np.ndarray) -> None:
        simulation, index = key
        if self.mesh is not None:
            mesh = self.buffer.slots.statics[simulation]["mesh"].tolist()
            assert set(mesh) <= {mesh_value(simulation, 0), mesh_value(simulation, 1)}, f"nobody sent {mesh} for {key}"
            assert mesh == self.meshes.setdefault(simulation, mesh), (
                f"samples of {simulation} differ in what they share"
            )
        assert any(key in peer.announced for peer in self.peers), f"{key} was trained, but nobody sent it"
        assert key not in self.drawn, f"{key} was trained twice"
        assert simulation >= NUM_HELD_OUT, "a held-out step was trained"
        assert simulation not in self.withdrawn, "a step was trained that was withdrawn"
        assert np.isin(row, allowed(simulation, index)).all(), f"{row} is not what was sent for {key}"
        self.drawn.add(key)

    def _peer(self, number: int, *, num_client_ranks: int) -> Peer:
        """The first ones are of simulations of one rank each, or two of one of two ranks."""
        simulation, rank = divmod(number, num_client_ranks)
        state = self.intake.state
        stride = state.dealing.stride
        blocks, mesh = [u_block(0, rank, num_client_ranks)], mesh_blocks(self.mesh, rank)
        said = opening(simulation, rank, num_client_ranks, blocks, static_blocks=mesh)
        index = (state.rank - simulation) % stride
        name = b"peer-%d" % number
        return Peer(name=name, stride=stride, said=said, opening=said, mesh=self.mesh, index=index)

    def _hear(self, peer: Peer, message: Message, payload: list[bytes] | None = None) -> None:
        [header] = wire.encode(message)
        self.dispatcher.hear(peer.name, bytes(header), Frames(payload or []), None)

    def _reply(self, name: bytes, message: Message) -> None:
        wire.encode(message)
        for peer in self.peers:
            if isinstance(message, Opened) and peer.name == name:
                peer.opened()

    def _notice(self, simulation: int) -> None:
        match self.script.one_of(4):
            case 0:
                self.dispatcher.apply(
                    notices.AttemptNotice(simulation=simulation, attempt=1, parameters={}, goes_on=True)
                )
            case 1:
                self.dispatcher.apply(notices.AttemptOver(simulation=simulation, attempt=self.script.one_of(2)))
            case _:
                state = STATES[self.script.one_of(len(STATES))]
                if self.intake.attempt(simulation) is not None:
                    self.dispatcher.apply(notices.Terminal(simulation=simulation, state=state))
                if state == "invalid":
                    self.withdrawn.add(simulation)


def run(data: bytes) -> None:
    """Play the script to its end, without and with a field that is sent once, of one size and of several."""
    for mesh in (None, MESH, ROWS):
        script = Script(data)
        with np.errstate(all="ignore"):
            server = Server(script, mesh=mesh)
            while not script.is_over:
                server.step()
            server.end()


TARGET = Target(run=run, seeds=(b"", bytes(range(64)), bytes(range(0, 256, 3)) * 4), is_script=True, max_bytes=160)
