"""A client that speaks the protocol without heeding it."""

from collections.abc import Sequence
from socket import SocketType, create_connection
from types import TracebackType
from typing import Self, TypeVar

import zmq

from stream_server.messages import wire
from stream_server.messages.client import (
    ATTACHING,
    Block,
    Data,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Opened,
    Refusal,
    Welcome,
)
from tests.faults.resources.victim import SHAPE, Victim

M = TypeVar("M", bound=Message)

ANSWER_MS = 20_000
STUCK_MS = 500
WHOLE = Block(field="u", dtype="<f8", shape=SHAPE, offset=(0,), count=SHAPE)
HALF = Block(field="u", dtype="<f8", shape=SHAPE, offset=(0,), count=(SHAPE[0] // 2,))


class HostileClient:
    """Sockets to one server, which queue next to nothing on this side."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    def __enter__(self) -> Self:
        self._context = zmq.Context()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def socket(self, name: str) -> "zmq.Socket[bytes]":
        """A connection to one of the server's sockets: `c` for control, `d0` for data, `p` for the other ranks."""
        return self.connect(f"ipc://{self.victim.ipc / name}")

    def stranger(self) -> SocketType:
        """A connection over TCP to the port for data, without a key."""
        return create_connection(self.victim.data_port)

    def with_key(self) -> "zmq.Socket[bytes]":
        """A connection over TCP to the port for data, with the key of the connection file."""
        security = self.victim.connection.security
        assert security is not None
        it: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        it.sndhwm, it.linger = 1, 0
        it.curve_serverkey = security.server_public_key.encode()
        it.curve_publickey = security.client_public_key.encode()
        it.curve_secretkey = security.client_secret_key.encode()
        host, port = self.victim.data_port
        it.connect(f"tcp://{host}:{port}")
        return it

    def connect(self, address: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.sndhwm, socket.linger, socket.sndtimeo = 1, 0, STUCK_MS
        socket.connect(address)
        return socket

    def flood(self, name: str, frames: Sequence[bytes], limit: int) -> int:
        """Send the same message until the server takes no more, or has taken `limit` bytes; how many it took."""
        num_bytes = 0
        with self.socket(name) as socket:
            while num_bytes < limit:
                try:
                    socket.send_multipart(frames)
                except zmq.Again:
                    break
                num_bytes += sum(map(len, frames))
        return num_bytes

    def hello(self, *, simulation: int | None, attempt: int = ATTACHING, study: str | None = None) -> bytes:
        """The bytes of a Hello."""
        study = study or self.victim.connection.study
        (frame,) = wire.encode(Hello(study=study, simulation=simulation, attempt=attempt, rank=0, num_ranks=1))
        return bytes(frame)

    def seat(self, simulation: int) -> Welcome:
        """Become the client of a simulation."""
        with self.socket("c") as control:
            control.send(self.hello(simulation=simulation))
            return _answer(control, Welcome)

    def open(self, welcome: Welcome, block: Block = WHOLE, *, num_ranks: int = 1) -> tuple["zmq.Socket[bytes]", Opened]:
        """A data connection as rank 0 of its simulation."""
        data = self.socket("d0")
        message = Open(
            study=welcome.study,
            simulation=welcome.simulation,
            attempt=welcome.attempt,
            incarnation=welcome.incarnation,
            rank=0,
            num_ranks=num_ranks,
            blocks=(block,),
        )
        data.send_multipart(wire.encode(message))
        return data, _answer(data, Opened)

    def withdraw(self, welcome: Welcome) -> None:
        """Nobody has to produce this simulation any more."""
        message = Invalidate(
            study=welcome.study, simulation=welcome.simulation, attempt=welcome.attempt, reason="it was an attack"
        )
        with self.socket("c") as control:
            control.send_multipart(wire.encode(message))
            _answer(control, Invalidated)


def data_of(welcome: Welcome, number: int, payload: bytes) -> list[bytes]:
    """The `number`-th step of a simulation, in one message."""
    data = Data(
        simulation=welcome.simulation,
        attempt=welcome.attempt,
        incarnation=welcome.incarnation,
        sequence=number,
        index=number,
        num_steps=1,
        present=1,
    )
    return [bytes(frame) for frame in wire.encode(data, [payload])]


def drained(socket: "zmq.Socket[bytes]") -> int:
    """Read all that waits; how many messages that was."""
    num = 0
    while socket.poll(0):
        socket.recv_multipart()
        num += 1
    return num


def _answer(socket: "zmq.Socket[bytes]", kind: type[M]) -> M:
    while socket.poll(ANSWER_MS):
        message = wire.decode(socket.recv_multipart()[0])
        if isinstance(message, kind):
            return message
        assert isinstance(message, Refusal), message
    raise AssertionError(f"no {kind.__name__} came")
