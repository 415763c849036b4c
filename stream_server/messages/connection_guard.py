"""The guard of sockets: a thread that cuts connections of strangers over TCP before they take what others need.

Why: docs/decisions/0075-floods.md
"""

import fcntl
import logging
import os
import socket
import struct
import termios
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import zmq

from stream_server.messages.connection_table import MAX_UNFINISHED_BYTES, ConnectionTable, PeerConnection

EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
EVENT = struct.Struct("=HI")
EVENTS_AT_ONCE = 64
STRANGERS_TICK_S = 0.02
CLIENTS_TICK_S = 0.05
SUSPICION_TICK_S = 0.005
# A simulation is two connections, and so four events: to be woken for each of them costs rank 0 a tenth of all that it
# does for a simulation. But libzmq takes a descriptor for each stranger meanwhile, 20,000 of them in a second or more.
GATHER_S = 0.002
# `tcpi_bytes_received` of Linux' struct tcp_info.
BYTES_RECEIVED = struct.Struct("=128xQ")
UNREAD = struct.Struct("=i")
REPORT_S = 60.0

log = logging.getLogger(__name__)


class ConnectionGuard:
    """Watches the connections of some sockets by libzmq's monitors, on the thread `guard-NAME`.

    In the main thread: `watch` each socket before it is bound, then `start`; `stop` when nothing else uses them.
    The thread that reads the sockets tells of each message by `heard`, or sets `was_heard` in what `routed` has of its
    connection, and counts `turn` up when it has read all that had come. `wake` makes it begin a turn.

    An exception stays in `error`, after `wake`. The thread goes on to take events even then: libzmq's own thread stands
    still once about a thousand of them wait for a reader. That is also what bounds the connections that it accepts
    while user code keeps this thread from running.
    """

    def __init__(
        self,
        name: str,
        *,
        max_connections: int,
        names: tuple[str, ...],
        wake: Callable[[], None],
        max_unfinished: float = MAX_UNFINISHED_BYTES,
    ) -> None:
        self.table = ConnectionTable(max_connections, names, max_unfinished=max_unfinished)
        self.routed = self.table.routed
        self.error: BaseException | None = None
        self.turn = 0
        self.num_cut: Counter[str] = Counter()
        self._wake = wake
        self._readers: dict[zmq.Socket[bytes], str] = {}
        self._watched: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self._identified: deque[tuple[str, int, bytes, str]] = deque()
        self._tick_at = self._report_at = 0.0
        self._is_stopping = Event()
        self._thread = Thread(target=self._run, name=f"guard-{name}")

    def watch(self, name: str, watched: "zmq.Socket[bytes]") -> None:
        """Follow the connections of a socket from now on."""
        address = f"inproc://guard-{name}"
        watched.monitor(address, EVENTS)
        self._watched.append(watched)
        reader = watched.context.socket(zmq.PAIR)
        self._readers[reader] = name
        reader.rcvhwm, reader.linger = 1, 0
        reader.connect(address)
        self._poller.register(reader, zmq.POLLIN)

    def start(self) -> None:
        # A connection is looked at through a descriptor of our own, which is taken now, while there are some.
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        # It has room for the addresses of either kind, also where the system has no IPv6.
        self._probe = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=socket.socket().detach())
        os.dup2(self._nothing, self._probe.fileno(), inheritable=False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The sockets may be closed afterwards."""
        self._is_stopping.set()
        for watched in self._watched:
            watched.disable_monitor()
        if self._thread.ident is not None:
            self._thread.join()
            os.close(self._probe.detach())
            os.close(self._nothing)
        for reader in list(self._readers):
            reader.close()

    def heard(self, name: str, routing_id: bytes, frame: zmq.Frame, *, is_question: bool = False) -> bool:
        """Take note of a message; whether it is to be answered, which one of a flood is not. Reader's thread."""
        connection = self.routed[name].get(routing_id)
        if connection is None:
            owner = user_of(frame) or str(frame.get("Peer-Address"))
            self._identified.append((name, int(frame.get(zmq.SRCFD)), routing_id, owner))
        else:
            owner = connection.owner or ""
            connection.was_heard = True
            connection.num_questions += is_question
        return not self.is_penalized(owner)

    def is_penalized(self, owner: str) -> bool:
        """Whether this owner has flooded us lately: nothing that it says is answered. Any thread."""
        return time.monotonic() < self.table.penalties.get(owner, 0.0)

    def _run(self) -> None:
        num_watched = len(self._watched)
        while num_watched:
            ready = self._poller.poll(self._timeout_ms())
            try:
                # In this order: who is identified was accepted before, but may have been disconnected since.
                identified = [self._identified.popleft() for _ in range(len(self._identified))]
                for reader, _ in ready:
                    num_watched -= self._take_events(reader)
                if self.error is None:
                    self._look(identified)
            except BaseException as error:
                log.exception("The guard of connections failed")
                self.error = error
                self._wake()
            self._is_stopping.wait(self._rest_s())

    def _rest_s(self) -> float:
        """How long events may gather: not in a flood, nor beyond the moment at which connections are to be measured."""
        num = self.table.num_connections
        if num >= self.table.max_connections:
            return 0.0
        return min(GATHER_S, max(0.0, self._tick_at - time.monotonic())) if num else GATHER_S

    def _timeout_ms(self) -> int | None:
        if self.error is not None or not self.table.num_connections:
            return None
        return max(0, round((self._tick_at - time.monotonic()) * 1000))

    def _take_events(self, reader: "zmq.Socket[bytes]") -> bool:
        """Take some events of a socket; whether there will be no more."""
        for _ in range(EVENTS_AT_ONCE):
            try:
                what, endpoint = reader.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event, value = EVENT.unpack(what)
            if event == zmq.EVENT_MONITOR_STOPPED:
                return True
            name = self._readers[reader]
            if event == zmq.EVENT_DISCONNECTED:
                self.table.closed((name, value))
            else:
                self._accepted(name, value, is_local=not endpoint.startswith(b"tcp:"))
        return False

    def _accepted(self, name: str, descriptor: int, *, is_local: bool) -> None:
        address = ("", 0)
        if not is_local:
            # One that is gone already is closed by one of the next events.
            with suppress(OSError), self._looking_at(descriptor) as probe:
                address = probe.getpeername()
        now = time.monotonic()
        self.table.accepted(
            PeerConnection(
                name=name, descriptor=descriptor, address=address, since=now, is_local=is_local, turn_seen=self.turn
            )
        )

    def _look(self, identified: list[tuple[str, int, bytes, str]]) -> None:
        now = time.monotonic()
        for name, descriptor, routing_id, owner in identified:
            key = (name, descriptor)
            it = self.table.strangers.get(key)
            num_bytes = 0 if it is None else self._num_bytes(it)
            self.table.identified(key, routing_id, owner, num_bytes=num_bytes, turn=self.turn, now=now)
        for it in self.table.penalized(now):
            self._cut(it, "its owner floods")
        for it in self.table.surplus():
            self._cut(it, "too many")
        if now >= self._tick_at:
            self._measure(now)
        if now >= self._report_at and self.num_cut:
            self._report_at = now + REPORT_S
            log.warning("Connections that were cut since the start: %s", dict(self.num_cut))

    def _measure(self, now: float) -> None:
        self._tick_at = now + (STRANGERS_TICK_S if self.table.strangers else CLIENTS_TICK_S)
        for it in self.table.to_measure():
            # Taken first: a message that is read from now on may not be among the bytes.
            was_heard, it.was_heard = it.was_heard, False
            num_bytes = self._num_bytes(it)
            if why := self.table.offence(it, num_bytes, was_heard=was_heard, turn=self.turn, now=now):
                self._cut(it, why)
            elif num_bytes - it.bytes_heard > self.table.max_unfinished:
                self._tick_at = now + SUSPICION_TICK_S
                self._wake()

    def _num_bytes(self, it: PeerConnection) -> int:
        """The bytes that libzmq has taken from a connection so far; 0 if it is gone."""
        with suppress(OSError), self._looking_at(it.descriptor) as probe:
            told = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.size)
            unread = fcntl.ioctl(probe, termios.FIONREAD, bytes(UNREAD.size))
            return int(BYTES_RECEIVED.unpack(told)[0] - UNREAD.unpack(unread)[0])
        return 0

    def _cut(self, it: PeerConnection, why: str) -> None:
        """End a connection that belongs to libzmq, to which it looks as if the other end had."""
        log.debug("cut a connection of %s: %s", it.owner or it.address[0], why)
        self.num_cut["strangers" if it.owner is None else "clients"] += 1
        self.table.cut(it)
        with suppress(OSError), self._looking_at(it.descriptor) as probe:
            # libzmq may have closed it meanwhile, and its descriptor may be that of anything else.
            if probe.getpeername() == it.address:
                probe.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _looking_at(self, descriptor: int) -> Iterator[socket.socket]:
        """A socket that is the one behind this descriptor, for as long as it is needed."""
        os.dup2(descriptor, self._probe.fileno(), inheritable=False)
        try:
            yield self._probe
        finally:
            os.dup2(self._nothing, self._probe.fileno(), inheritable=False)


def user_of(frame: zmq.Frame) -> str | None:
    """The key of the peer that sent a frame; None where no keys are used."""
    try:
        return str(frame.get("User-Id")) or None
    except zmq.ZMQError:
        return None
