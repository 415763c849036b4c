"""The client's only door to ZeroMQ: sockets that speak the messages of the protocol.

Why: docs/decisions/0070-refused-keys.md
Why: docs/decisions/0087-client-alone.md
"""

import errno
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import zmq

from stream_server.errors import MalformedMessage, Refused, Unreachable
from stream_server.messages import wire
from stream_server.messages.client import Message
from stream_server.messages.connection import Security
from stream_server.messages.curve import secure_client_socket
from stream_server.messages.ipc import PrivateIpcPaths
from stream_server.messages.tcp import connect_socket

LINGER_MS = 2000
# ZeroMQ's own.
DEFAULT_MAX_SOCKETS = 1023
# What ZeroMQ's threads open, without which it ends the process, and the folder of the sockets.
FILES_OF_A_CONTEXT = 9
FILES_OF_A_SOCKET = 2
# The server does not know the key; it wants keys and was shown none, or the other way round.
REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Dealer:
    """One connection to one socket of the server.

    `is_lost`: ZeroMQ has closed the connection, as it does when it received forged or damaged data. `refusals`: where
    it tells that the server has refused the keys, or that it has none.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        address: str,
        *,
        encrypted: bool,
        refusals: "zmq.Socket[bytes] | None" = None,
    ) -> None:
        self._socket = socket
        self.address = address
        self.is_lost = False
        self.is_tcp = address.startswith("tcp:")
        self.needs_checksum = self.is_tcp and not encrypted
        self._refusals = refusals

    @property
    def is_refused(self) -> bool:
        """The server has refused the keys. Nothing more will come, even where ZeroMQ still takes messages."""
        return self._refusals is not None and bool(self._refusals.poll(0))

    def close(self, *, linger_ms: int) -> None:
        """Close the connection; what ZeroMQ still holds is sent on for so long, or dropped."""
        if self._refusals is not None:
            self._socket.disable_monitor()
            self._refusals.close(linger=0)
        self._socket.close(linger=linger_ms)

    def send(self, message: Message, payload: Sequence[wire.Frame | np.ndarray] = ()) -> list[memoryview]:
        """Give a message to ZeroMQ, which copies it at once; never blocks. Returns its copies of the payload.

        Credit bounds what can pile up here, not a high-water mark: it counts steps, a mark would count parts.
        """
        header, *frames = wire.encode(message, payload)
        copies = [zmq.Frame(frame, copy=True) for frame in frames]
        num_left = len(copies)
        try:
            self._socket.send(header, zmq.NOBLOCK | (zmq.SNDMORE if num_left else 0))
            for copy in copies:
                num_left -= 1
                self._socket.send(copy, zmq.NOBLOCK | (zmq.SNDMORE if num_left else 0), copy=False)
        except zmq.Again:
            # No mark can be reached here: there is nobody at the other end, and there will not be.
            self.is_lost = True
        return [copy.buffer for copy in copies]

    def receive(self) -> Message | None:
        """The next message, or None if none waits.

        Raises:
            Refused: what waits is no message of this protocol.
        """
        if not self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator, arg-type]
            return None
        header = self._socket.recv_multipart()[0]
        try:
            return wire.decode(header)
        except MalformedMessage as error:
            raise Refused(
                f"the server at {self.address} does not speak the protocol of this client: {error}"
            ) from error


class Transport:
    """The sockets of one simulation, and the context they live in. `close` ends them all.

    `is_same_node`: the server is on this node, `host`.

    Raises:
        OSError: this process may not open as many files as they need.
    """

    def __init__(self, *, host: str, security: Security | None, num_connections: int = 1) -> None:
        _require_files(FILES_OF_A_CONTEXT + FILES_OF_A_SOCKET * num_connections)
        self.is_same_node = host == socket.gethostname()
        self._security = security
        self._paths = PrivateIpcPaths()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, max(num_connections, DEFAULT_MAX_SOCKETS))
        self._poller = zmq.Poller()
        self._dealers: dict[zmq.Socket[bytes], Dealer] = {}

    def connect(self, addresses: Sequence[str], name: bytes | None = None, *, heeds_refusals: bool = False) -> Dealer:
        """A connection to the first of these addresses that can be used from this node.

        With a `name`, the server knows it for the same client as any other connection of that name. One that
        `heeds_refusals` tells of them, over TCP and where there are the means; else a refusal is silence, which ends as
        any other.

        Raises:
            Unreachable: none can.
        """
        address, way = usable(addresses, self._paths if self.is_same_node else None)
        connection = self._context.socket(zmq.DEALER)
        refusals = None
        if heeds_refusals and address.startswith("tcp:"):
            # Before there is a connection: it may be refused before this thread goes on.
            with suppress(zmq.ZMQError):
                refusals = connection.get_monitor_socket(REFUSALS)
        self._dealers[connection] = dealer = Dealer(
            connection, address, encrypted=self._security is not None, refusals=refusals
        )
        connection.set(zmq.LINGER, LINGER_MS)
        connection.set(zmq.SNDHWM, 0)
        if name is not None:
            connection.routing_id = name
        if self._security is not None and address.startswith("tcp:"):
            secure_client_socket(connection, self._security)
        connect_socket(connection, way)
        self._poller.register(connection, zmq.POLLIN)
        return dealer

    def wait(self, timeout_s: float) -> list[Dealer]:
        """The connections on which a message waits; at the latest after `timeout_s`."""
        ready = self._poller.poll(max(0, round(timeout_s * 1000)))
        return [self._dealers[socket] for socket, _ in ready if isinstance(socket, zmq.Socket)]

    def close(self, *, linger: bool) -> None:
        """Close all sockets; what ZeroMQ still holds is sent on for two seconds at most, or dropped."""
        for dealer in self._dealers.values():
            dealer.close(linger_ms=LINGER_MS if linger else 0)
        self._dealers.clear()
        self._context.term()
        self._paths.close()


def new_name() -> bytes:
    """A name for `Transport.connect` that no other client has."""
    return secrets.token_hex(16).encode()


def _require_files(num: int) -> None:
    opened: list[int] = []
    try:
        for _ in range(num):
            opened.append(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return
        raise OSError(
            error.errno,
            f"ZeroMQ cannot be started: the connections to the server take {num} open files, but only {len(opened)} "
            "more are allowed (ulimit -n tells how many this process may have)",
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def usable(addresses: Sequence[str], paths: PrivateIpcPaths | None) -> tuple[str, str]:
    """The first address that means something here, and the way there; there are `paths` on the server's own node only.

    A server that is gone has no socket in the file system any more, or not in a folder of ours. It is as good as any
    that does not answer, and nothing is sent to where somebody else may put a socket now.
    """
    for address in addresses:
        if address.startswith("tcp:"):
            return address, address
        if paths is not None and (path := paths.to(address)) is not None:
            return address, path
    if paths is not None:
        return addresses[0], paths.connectable(addresses[0])
    raise Unreachable(f"none of the server's addresses can be used from {socket.gethostname()}: {', '.join(addresses)}")
