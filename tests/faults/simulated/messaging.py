"""The module `zmq`, as far as the product uses it, over the simulated network.

ROUTER, DEALER, frames and poller behave as libzmq's; there are no keys, no heartbeats and no limits of what is read.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import zmq

from tests.faults.simulated.network import Frames, Line, Network

Readable = "int | Socket"


class Frame:
    """One part of a message."""

    def __init__(self, data: Any, copy: bool = True, *, more: bool = False) -> None:
        self.bytes = bytes(data)
        self.more = more

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.bytes)

    def get(self, name: str) -> str:
        if name == "Peer-Address":
            return ""
        raise zmq.ZMQError(zmq.EINVAL)


class Socket:
    """A ROUTER or a DEALER. `inbox` are the messages that have arrived, `peers` the lines of those that are connected.

    Options that change nothing here are taken and forgotten.
    """

    def __init__(self, network: Network, kind: int) -> None:
        assert network.threads.current is not None
        self.network = network
        self.kind = kind
        self.process = network.threads.current.process
        self.is_router = kind == zmq.ROUTER
        self.inbox: deque[Frames] = deque()
        self.peers: dict[bytes, Line] = {}
        self.routing_id = b""
        self.sndhwm = 0
        self.closed = False
        self._line: Line | None = None
        self._reading: deque[bytes] = deque()
        self._writing: list[bytes] = []
        self._endpoint = ""

    @property
    def is_readable(self) -> bool:
        return bool(self.inbox or self._reading)

    def bind(self, address: str) -> None:
        self._endpoint = self.network.bind(self, address)

    def connect(self, address: str) -> None:
        self._line = self.network.connect(self, address)

    def set(self, option: int, value: Any) -> None:
        if option == zmq.ROUTING_ID:
            self.routing_id = value

    def getsockopt(self, option: int) -> int:
        if option == zmq.RCVMORE:
            return int(bool(self._reading))
        assert option == zmq.EVENTS
        return int(zmq.POLLIN) if self.is_readable else 0

    def getsockopt_string(self, option: int) -> str:
        assert option == zmq.LAST_ENDPOINT
        return self._endpoint

    def poll(self, timeout: float | None = None) -> int:
        limit_s = None if timeout is None else timeout / 1000
        if limit_s != 0:
            self.network.threads.wait(lambda: self.is_readable, limit_s, "socket")
        return self.getsockopt(zmq.EVENTS)

    def send(self, data: Any, flags: int = 0, copy: bool = True) -> None:
        self._writing.append(data.bytes if isinstance(data, Frame) else bytes(data))
        if flags & zmq.SNDMORE:
            return
        frames, self._writing = tuple(self._writing), []
        self._send(frames)
        self.network.threads.switch("sent")

    def send_multipart(self, parts: Sequence[Any], flags: int = 0, copy: bool = True) -> None:
        for part in parts[:-1]:
            self.send(part, zmq.SNDMORE)
        self.send(parts[-1])

    def recv(self, flags: int = 0, copy: bool = True) -> Any:
        if not self._reading:
            if not self.inbox and (flags & zmq.NOBLOCK or not self.poll()):
                raise zmq.Again
            self._reading.extend(self.inbox.popleft())
        data = self._reading.popleft()
        return data if copy else Frame(data, more=bool(self._reading))

    def get_monitor_socket(self, events: int) -> Any:
        raise zmq.ZMQError(zmq.ENOTSUP)

    def recv_into(self, buffer: Any) -> int:
        data = self.recv()
        view = memoryview(buffer).cast("B")
        view[: len(data)] = data[: len(view)]
        return len(data)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        parts = [self.recv(flags, copy)]
        while self._reading:
            parts.append(self.recv(flags, copy))
        return parts

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            self.closed = True
            self.network.close(self, abruptly=linger == 0)

    def _send(self, frames: Frames) -> None:
        if self.is_router:
            line = self.peers.get(frames[0])
            if line is not None:
                self.network.send_down(line, frames[1:], self.sndhwm)
        elif self._line is not None:
            self.network.send_up(self._line, frames)


class Context:
    """Makes sockets."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.closed = False

    def socket(self, kind: int) -> Socket:
        return Socket(self._network, kind)

    def set(self, option: int, value: Any) -> None:
        pass

    def term(self) -> None:
        self.closed = True


class Poller:
    """Waits for sockets, and for file descriptors of which `has_bytes` says whether they can be read."""

    def __init__(self, network: Network, has_bytes: Callable[[int], bool]) -> None:
        self._threads = network.threads
        self._has_bytes = has_bytes
        self._readables: dict[Any, None] = {}

    def register(self, readable: Any, flags: int = 0) -> None:
        self._readables[readable] = None

    def unregister(self, readable: Any) -> None:
        del self._readables[readable]

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        self._threads.wait(self._has_any, None if timeout is None else timeout / 1000, "poll")
        return [(it, int(zmq.POLLIN)) for it in self._readables if self._is_readable(it)]

    def _has_any(self) -> bool:
        return any(map(self._is_readable, self._readables))

    def _is_readable(self, it: Any) -> bool:
        return self._has_bytes(it) if isinstance(it, int) else it.is_readable


def module(network: Network, has_bytes: Callable[[int], bool]) -> SimpleNamespace:
    """The stand-in for the module `zmq`."""
    return SimpleNamespace(
        **{
            **vars(zmq),
            "Context": partial(Context, network),
            "Socket": Socket,
            "Frame": Frame,
            "Poller": partial(Poller, network, has_bytes),
        }
    )


class PrivateIpcPaths:
    """`ipc.PrivateIpcPaths` where no socket is a file: all use TCP; the launcher's link is its address."""

    def to(self, address: str, *, must_exist: bool = True) -> str | None:
        return None

    def connectable(self, address: str) -> str:
        return address

    def close(self) -> None:
        """Nothing is open."""


class NoGuard:
    """In the place of the guard of connections: no stranger is here, and the network has no descriptors to cut."""

    error = None
    turn = 0

    def __init__(self, name: str, *, names: tuple[str, ...], **settings: Any) -> None:
        self.routed: dict[str, dict[bytes, Any]] = {name: {} for name in names}

    def watch(self, name: str, watched: Socket) -> None:
        """Nothing is followed."""

    def start(self) -> None:
        """There is no thread."""

    stop = start

    def heard(self, name: str, routing_id: bytes, frame: Frame, *, is_question: bool = False) -> bool:
        """Everybody is answered."""
        return True
