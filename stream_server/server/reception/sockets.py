"""The server's only door to ZeroMQ: the sockets of one rank's receiver, as frames in and frames out.

Why: docs/decisions/0009-dealer-and-router.md
"""

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import zmq

from stream_server.messages.client import MAX_PART_BYTES
from stream_server.messages.connection_guard import ConnectionGuard, user_of
from stream_server.messages.curve import ZAP_ADDRESS, KeyPair, secure_peer_socket, secure_server_socket
from stream_server.messages.ipc import PrivateIpcPaths
from stream_server.messages.tcp import ANYWHERE, bind_tcp, connect_socket
from stream_server.server.reception.access import CurveAccess

LINGER_MS = 1000
MAX_CONTROL_MESSAGES = 64
MAX_CONTROL_BYTES = 1024 * 1024
CONTROL_BUFFER_BYTES = 16 * 1024
MAX_NOTICE_BYTES = 256 * 1024 * 1024
# ZeroMQ compares what is on the wire, where CURVE adds 33 bytes to a frame.
MAX_FRAME_BYTES = MAX_PART_BYTES + 64
RANK = b"rank-"
DATA, CONTROL, PEERS = "data", "control", "peers"
# A server on a node of a cluster that died leaves connections that would otherwise stay for ever.
KEEPALIVE_IDLE_S = 120
KEEPALIVE_EVERY_S = 30
FURTHER_FRAME = zmq.SNDMORE | zmq.NOBLOCK

Socket = zmq.Socket[bytes]
Frame = bytes | memoryview


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """The addresses of one server rank, the `ipc://` one first, which means something on `host` only.

    `data` is for clients; `control`, also for clients, `operator`, for those who hold the key in operator.json, and
    `peers`, for the other ranks, are rank 0's alone.
    """

    host: str
    data: tuple[str, ...]
    control: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    operator: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be gathered over the ranks."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Endpoints":
        """Made from `to_dict`, also after JSON."""
        return cls(
            host=plain["host"],
            data=tuple(plain["data"]),
            control=tuple(plain["control"]),
            peers=tuple(plain["peers"]),
            operator=tuple(plain["operator"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverSettings:
    """Settings of a receiver, beside its collaborators.

    `ipc_folder` is private to this node (0700) and its path short: one of a socket has at most 107 bytes. `host` is
    the name that other nodes know this one by; `address` the one to listen at, "*" for all that this node has; `ports`
    the range to choose from, None for any. `link` is the launcher's address (rank 0), and `link_keys` what it asks for.
    At most `max_connections` may come over TCP, those of strangers included.
    """

    ipc_folder: Path
    host: str
    address: str = ANYWHERE
    ports: tuple[int, int] | None = None
    link: str | None = None
    link_keys: KeyPair | None = None
    max_connections: int = 256


class SocketPayload:
    """The rest of the message that is being read; see `filling.Payload`. Begins anew with each header."""

    def __init__(self, socket: Socket) -> None:
        self._get = socket.getsockopt
        self._recv = socket.recv
        self._recv_into = socket.recv_into
        self._more: bool | None = False

    def header(self) -> zmq.Frame:
        frame = self._recv(copy=False)
        self._more = frame.more
        return frame

    def more(self) -> bool:
        # A frame carries this flag; after a receive into memory the socket must be asked, which takes 1 µs.
        if self._more is None:
            self._more = bool(self._get(zmq.RCVMORE))
        return self._more

    def into(self, buffer: npt.NDArray[Any], /) -> int:
        self._more = None
        return self._recv_into(buffer.data)

    def frame(self) -> memoryview:
        frame = self._recv(copy=False)
        self._more = frame.more
        return frame.buffer

    def drain(self) -> None:
        while self.more():
            self.frame()


class Sockets:
    """The sockets of one rank. Opened and closed in the main thread, used in the receiver thread in between.

    `max_unread` bounds how many messages of one client ZeroMQ keeps for us. `payload` is the rest of the message that
    `data` has just given.
    """

    def __init__(self, *, rank: int, max_unread: int, access: CurveAccess, settings: ReceiverSettings) -> None:
        self.rank = rank
        self.max_unread = max_unread
        self.access = access
        self.settings = settings
        names = (DATA, CONTROL, PEERS) if rank == 0 else (DATA,)
        self.guard = ConnectionGuard(str(rank), max_connections=settings.max_connections, names=names, wake=self.wake)
        self._opened: list[Socket] = []
        self._paths = PrivateIpcPaths()
        self._is_awake = False
        self._launcher_has_ended = False
        self._ready: dict[Any, int] = {}

    def open(self) -> Endpoints:
        """Bind everything; returns where this rank can be reached."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(self._wake_reader, zmq.POLLIN)
        try:
            return self._bind_all()
        except BaseException:
            self.close()
            raise

    def meet(self, zero: Endpoints) -> None:
        """Connect to rank 0, or, as rank 0, to the launcher."""
        if self.rank > 0:
            connect_socket(self._peers, self._way_to(zero))
        elif self.settings.link is not None:
            if self.settings.link_keys is not None:
                secure_peer_socket(self._link, self.settings.link_keys)
            connect_socket(self._link, self._paths.connectable(self.settings.link))

    def close(self) -> None:
        """Close everything, once; what is on its way out may take a second more."""
        if self._context.closed:
            return
        self._is_awake = True
        self.guard.stop()
        for socket in self._opened:
            has_nobody = self._launcher_has_ended and socket is self._link
            socket.close(linger=0 if has_nobody else LINGER_MS)
        self._opened.clear()
        self._context.term()
        self._paths.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def launcher_has_ended(self) -> None:
        """Do not wait in `close` for messages on their way to the launcher. Main thread."""
        self._launcher_has_ended = True

    def wake(self) -> None:
        """Make `wait` return. Any thread; nothing happens after `close`."""
        if not self._is_awake:
            self._is_awake = True
            os.write(self._wake_writer, b".")

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has come or `wake` is called; whether anything has."""
        if self.guard.error is not None:
            raise self.guard.error
        ready = dict(self._poller.poll(round(timeout_s * 1000)))
        if self._wake_reader in ready:
            # In this order: a `wake` in between finds us awake. The other way round its byte would be read here while
            # the flag stays up, and no later `wake` would ever write again.
            os.read(self._wake_reader, 4096)
            self._is_awake = False
        self._ready = ready
        return bool(ready)

    @property
    def has_control_messages(self) -> bool:
        """Something has come on another socket than that for data."""
        return not self._ready.keys() <= self._usual

    def answer_newcomers(self) -> None:
        """Answer libzmq's questions about who may connect."""
        for request in self._messages(self._zap, copy=True):
            self._zap.send_multipart(self.access.answer(request, self.guard.is_penalized))

    def data(self, known: Container[bytes], limit: int) -> Iterator[tuple[bytes, bytes, str | None, int | None]]:
        """At most `limit` messages of clients: peer, header, and of peers that are not `known` key and process, if any.

        The process is one on this node, which has come through our folder.
        """
        if self._data not in self._ready:
            return
        receive, payload, routed = self._data.recv, self.payload, self.guard.routed[DATA]
        for _ in range(limit):
            try:
                peer = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            header = payload.header()
            if peer in known:
                if (connection := routed.get(peer)) is not None:
                    connection.was_heard = True
                yield peer, header.bytes, None, None
            elif self.guard.heard(DATA, peer, header, is_question=True):
                yield peer, header.bytes, user_of(header), _process_of(header)
            payload.drain()

    def control(self) -> Iterator[tuple[bytes, bytes, str | None]]:
        """The messages of clients to rank 0: peer, message, and the key, if any."""
        for frames in self._messages(self._control):
            peer = frames[0].bytes
            if self.guard.heard(CONTROL, peer, frames[1], is_question=True):
                yield peer, frames[1].bytes, user_of(frames[1])

    def notices(self) -> Iterator[tuple[int, bytes]]:
        """The frames from other ranks: rank and frame."""
        for frames in self._messages(self._peers):
            sender = frames[0].bytes
            if self.rank > 0:
                yield 0, sender
                continue
            # A rank may have much to say when many simulations end; others are not even answered here.
            if self.guard.heard(PEERS, sender, frames[-1]) and sender.startswith(RANK) and self._is_ours(frames[-1]):
                number = sender.removeprefix(RANK)
                if number.isdigit():
                    yield int(number), frames[-1].bytes

    def link(self) -> Iterator[bytes]:
        for frames in self._messages(self._link, copy=True):
            yield frames[0]

    def send_data(self, peer: bytes, frame: Frame) -> None:
        """To a client; dropped if it is gone, or while MAX_CONTROL_MESSAGES answers wait to be sent: it asks again."""
        _send(self._data, peer, frame)

    def send_control(self, peer: bytes, frame: Frame) -> None:
        """To a client on the control socket; dropped if it is gone or does not read."""
        _send(self._control, peer, frame)

    def send_notice(self, rank: int, frame: bytes) -> None:
        """To another rank; dropped if it has not appeared yet."""
        self._peers.send_multipart([frame] if self.rank > 0 else [RANK + str(rank).encode(), frame])

    def send_link(self, frame: bytes) -> None:
        """To the launcher."""
        if self.settings.link is not None:
            self._link.send(frame)

    def _bind_all(self) -> Endpoints:
        self._zap = self._socket(zmq.REP)
        self._zap.bind(ZAP_ADDRESS)
        self._data = self._socket(
            zmq.ROUTER, unread=self.max_unread, unsent=MAX_CONTROL_MESSAGES, num_bytes=MAX_FRAME_BYTES
        )
        self.payload = SocketPayload(self._data)
        self._usual = {self._wake_reader, self._data}
        endpoints = {"data": self._bind(self._data, f"d{self.rank}", DATA)}
        operator: tuple[str, ...] = ()
        if self.rank == 0:
            self._control = self._control_socket(unsent=MAX_CONTROL_MESSAGES)
            # A client keeps its name when it connects anew: its new connection takes over from the lost one.
            self._control.router_handover = True
            endpoints["control"] = self._bind(self._control, "c", CONTROL)
            operator = self._bind_operator(endpoints["control"])
            # Ranks say little to rank 0, and say it again. Clients with a key may connect here, too.
            self._peers = self._control_socket()
            endpoints["peers"] = self._bind(self._peers, "p", PEERS)
            self._link = self._socket(zmq.DEALER)
        else:
            self._peers = self._socket(zmq.DEALER, num_bytes=MAX_NOTICE_BYTES)
            self._peers.routing_id = RANK + str(self.rank).encode()
        self.guard.start()
        return Endpoints(host=self.settings.host, operator=operator, **endpoints)

    def _control_socket(self, *, unsent: int = 0) -> Socket:
        """A socket for messages that are small, and that are said again if need be."""
        socket = self._socket(zmq.ROUTER, unread=MAX_CONTROL_MESSAGES, unsent=unsent, num_bytes=MAX_CONTROL_BYTES)
        # What arrived before a connection was cut is still processed, so its amount is limited.
        socket.rcvbuf = CONTROL_BUFFER_BYTES
        return socket

    def _socket(self, kind: int, *, unread: int = 0, unsent: int = 0, num_bytes: int = -1) -> Socket:
        socket = self._context.socket(kind)
        self._opened.append(socket)
        socket.rcvhwm, socket.sndhwm, socket.maxmsgsize = unread, unsent, num_bytes
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _bind_operator(self, addresses: tuple[str, str]) -> tuple[str, ...]:
        """Bind the control socket once more, to where nobody comes in without a key, also in the private folder."""
        secure_server_socket(self._control, self.access.server)
        path = f"ipc://{self.settings.ipc_folder / 'o'}"
        self._control.bind(path)
        return (path, addresses[1]) if self.access.encrypts_tcp else (path,)

    def _bind(self, socket: Socket, file: str, name: str) -> tuple[str, str]:
        self.guard.watch(name, socket)
        path = f"ipc://{self.settings.ipc_folder / file}"
        # A bind keeps the options of its moment: ipc, in its private folder, stays free of keys.
        socket.bind(path)
        if self.access.encrypts_tcp:
            secure_server_socket(socket, self.access.server)
        settings = self.settings
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S
        return path, bind_tcp(socket, address=settings.address, host=settings.host, ports=settings.ports)

    def _way_to(self, zero: Endpoints) -> str:
        ipc, tcp = zero.peers
        if zero.host == self.settings.host and (way := self._paths.to(ipc)) is not None:
            return way
        if self.access.encrypts_tcp:
            secure_peer_socket(self._peers, self.access.server)
        return tcp

    def _messages(self, socket: Socket, *, copy: bool = False) -> Iterator[list[Any]]:
        """Messages that have come on a socket; each part is a `zmq.Frame`, or bytes with `copy`."""
        if socket not in self._ready:
            return
        for _ in range(MAX_CONTROL_MESSAGES):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=copy)
            except zmq.Again:
                return
            yield frames

    def _is_ours(self, frame: zmq.Frame) -> bool:
        return user_of(frame) in (None, self.access.server.public)


def _send(router: Socket, peer: bytes, frame: Frame) -> None:
    # `send_multipart` takes several times as long.
    router.send(peer, FURTHER_FRAME)
    router.send(frame, zmq.NOBLOCK)


def _process_of(frame: zmq.Frame) -> int | None:
    """The process of this user at the other end of a connection on this node, as the kernel knows it; None over TCP."""
    match str(frame.get("Peer-Address")).split(":"):
        # An address of IPv6 that has four parts has an empty one.
        case [_, user, group, process] if user == str(os.geteuid()) and group.isdecimal() and process.isdecimal():
            return int(process)
    return None
