"""The guard of sockets: a thread that cuts connections of strangers over TCP before they take what others need.

Why: docs/decisions/0075-floods.md
"""

import ctypes
import fcntl
import logging
import os
import socket
import struct
import termios
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from threading import Event, Thread

import zmq

from stream_server.messages.client import MAX_PART_BYTES

# What a client says first is a Hello or an Open, right after the handshake, and both are small. Only where libzmq has
# connected again by itself is it the next message of those that wait, with a payload.
FIRST_MESSAGE_S = 30.0
SMALL_BYTES = 64 * 1024
MAX_STRANGERS_BYTES = 32 * 2**20
# A message carries at most MAX_PART_BYTES of payload.
MAX_UNFINISHED_BYTES = 2 * MAX_PART_BYTES
# A client asks once a second, an operator who reads a long table as fast as he gets the answers.
MAX_QUESTIONS_PER_S = 500
MANY_QUESTIONS = 50
PENALTY_S = 5.0
MEASURED_AT_ONCE = 128
# Turns of the receiver after which it has read all that had come before the first of them.
WHOLE_TURNS = 2

Key = tuple[str, int]

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


@dataclass(kw_only=True, slots=True)
class PeerConnection:
    """One connection to the socket `name`, known by its descriptor.

    It is a stranger's until its first message is read, which tells whose it is: `owner` is a key, or an address where
    no keys are used. The reader's thread sets `was_heard` and counts `num_questions`, which is all but samples of a
    client that has opened a connection for them; all else is the guard's.
    """

    name: str
    descriptor: int
    address: tuple[str | int, ...]
    since: float
    is_local: bool = False
    owner: str | None = None
    routing_id: bytes = b""
    was_heard: bool = False
    num_questions: int = 0
    questions_before: int = 0
    measured_at: float = 0.0
    num_bytes: int = 0
    bytes_heard: int = 0
    bytes_seen: int = 0
    turn_seen: int = 0

    @property
    def key(self) -> Key:
        return self.name, self.descriptor


class ConnectionTable:
    """The connections of some sockets, of which at most `max_connections` may come over TCP. Guard's thread.

    Those on the sockets in the private folder are known, so that no descriptor is taken for that of another, and left
    alone. An owner may have at most `max_unfinished` bytes under way of a message. `routed` has the others by the
    routing id under which their messages come, for each socket. `penalties` says until when the connections of which
    owners are cut: they have flooded us. `num_left` counts the bytes of the strangers that have gone.
    """

    def __init__(
        self, max_connections: int, names: Iterable[str], *, max_unfinished: float = MAX_UNFINISHED_BYTES
    ) -> None:
        self.max_connections = max_connections
        self.max_unfinished = max_unfinished
        self.routed: dict[str, dict[bytes, PeerConnection]] = {name: {} for name in names}
        self.strangers: dict[Key, PeerConnection] = {}
        self.clients: dict[Key, PeerConnection] = {}
        self._others: dict[Key, PeerConnection] = {}
        self._early: dict[Key, tuple[bytes, str]] = {}
        self.penalties: dict[str, float] = {}
        self.num_left = 0
        self._measured = 0

    @property
    def num_connections(self) -> int:
        """How many connections over TCP there are that were not cut."""
        return len(self.strangers) + len(self.clients)

    def accepted(self, it: PeerConnection) -> None:
        """A connection is there."""
        self._drop(it.key)
        early = self._early.pop(it.key, None)
        if it.is_local:
            self._others[it.key] = it
            return
        self.strangers[it.key] = it
        if early is not None:
            self.identified(it.key, *early, num_bytes=0, turn=it.turn_seen, now=it.since)

    def identified(self, key: Key, routing_id: bytes, owner: str, *, num_bytes: int, turn: int, now: float) -> None:
        """A message was read of a connection that is not among `routed`.

        That may be known before the connection is, or after another one has taken its descriptor: the newest message
        tells.
        """
        it = self.strangers.pop(key, None) or self.clients.get(key)
        if it is None:
            if key not in self._others:
                self._early[key] = (routing_id, owner)
            return
        self._unroute(it)
        it.owner, it.routing_id = owner, routing_id
        it.bytes_heard = it.bytes_seen = num_bytes
        it.turn_seen, it.measured_at = turn, now
        self.clients[key] = it
        self.routed[it.name][routing_id] = it

    def closed(self, key: Key) -> None:
        """A connection has gone."""
        self._drop(key)
        self._early.pop(key, None)

    def cut(self, it: PeerConnection) -> None:
        """Note that a connection is cut, and counts no more."""
        self._drop(it.key)
        self._others[it.key] = it

    def surplus(self) -> Iterator[PeerConnection]:
        """The connections that are too many; each must be cut before the next one is asked for.

        Whoever waits longest for the end of a handshake has the least to lose: a client is through with it at once. Of
        clients, the one with the most connections loses its newest.
        """
        while self.num_connections > self.max_connections:
            if self.strangers:
                yield next(iter(self.strangers.values()))
            else:
                owners = Counter(it.owner for it in self.clients.values())
                [(greedy, _)] = owners.most_common(1)
                yield next(it for it in reversed(self.clients.values()) if it.owner == greedy)

    def to_measure(self) -> list[PeerConnection]:
        """The connections whose bytes are to be counted now, some at a time."""
        if self._measured >= self.num_connections:
            self._measured = 0
        both = chain(self.strangers.values(), self.clients.values())
        some = list(islice(both, self._measured, self._measured + MEASURED_AT_ONCE))
        self._measured += len(some)
        return some

    def offence(self, it: PeerConnection, num_bytes: int, *, was_heard: bool, turn: int, now: float) -> str:
        """Why this connection must be cut; "" if it may stay. `num_bytes` have come over it, in all.

        `was_heard` since this was asked before: the receiver has read a message of it, before the bytes were counted.
        What came before a turn of the receiver, and belongs to no message after the next one, is the part of a message
        that libzmq still gathers: the receiver would have been given all that is whole. ZMQ_MAXMSGSIZE bounds one
        frame, and nothing the number of frames. Before a first message, which for libzmq includes the handshake,
        strangers share what one of them may send.
        """
        it.num_bytes = num_bytes
        if it.owner is None:
            if num_bytes > SMALL_BYTES and sum(it.num_bytes for it in self.strangers.values()) > MAX_STRANGERS_BYTES:
                return f"{num_bytes} bytes before a first message"
            if now - it.since > FIRST_MESSAGE_S and turn - it.turn_seen >= WHOLE_TURNS:
                return "no message after its handshake"
        elif self._is_flood(it, now):
            self.penalties[it.owner] = now + PENALTY_S
            return "a flood of questions"
        if was_heard:
            it.bytes_heard = num_bytes
        elif turn - it.turn_seen < WHOLE_TURNS:
            return ""
        elif it.bytes_seen - it.bytes_heard > self.max_unfinished:
            return f"{it.bytes_seen - it.bytes_heard} bytes of one message"
        it.bytes_seen, it.turn_seen = num_bytes, turn
        return ""

    def penalized(self, now: float) -> list[PeerConnection]:
        """The connections of those who have a penalty."""
        self.penalties = {owner: until for owner, until in self.penalties.items() if now < until}
        return [it for it in self.clients.values() if it.owner in self.penalties] if self.penalties else []

    def _is_flood(self, it: PeerConnection, now: float) -> bool:
        num, elapsed_s = it.num_questions - it.questions_before, now - it.measured_at
        it.questions_before, it.measured_at = it.num_questions, now
        return num > max(MANY_QUESTIONS, MAX_QUESTIONS_PER_S * elapsed_s)

    def _drop(self, key: Key) -> None:
        stranger = self.strangers.pop(key, None)
        if stranger is not None:
            self.num_left += stranger.num_bytes
        self._others.pop(key, None)
        it = self.clients.pop(key, None)
        if it is not None:
            self._unroute(it)

    def _unroute(self, it: PeerConnection) -> None:
        if self.routed[it.name].get(it.routing_id) is it:
            del self.routed[it.name][it.routing_id]


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
        self._malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
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
        """Time for which events may gather: not in a flood, nor beyond the next measurement."""
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
        if self.table.num_left > MAX_STRANGERS_BYTES and self._malloc_trim is not None:
            # The pages that libzmq has freed for each of them would stay the process's, beside those for the next ones.
            self._malloc_trim(0)
            self.table.num_left = 0
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
