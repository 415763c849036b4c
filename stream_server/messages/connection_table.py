"""The connections of some sockets, and which of them must be cut. Pure: events in, decisions out.

Why: docs/decisions/0075-floods.md
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

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
    owners are cut: they have flooded us.
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
        self.strangers.pop(key, None)
        self._others.pop(key, None)
        it = self.clients.pop(key, None)
        if it is not None:
            self._unroute(it)

    def _unroute(self, it: PeerConnection) -> None:
        if self.routed[it.name].get(it.routing_id) is it:
            del self.routed[it.name][it.routing_id]
