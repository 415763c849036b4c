"""A server for one client rank in its simplest form: what it knows, and messages under way. No sockets, no clock.

It is strict with the client: sequences, credit, payloads and the End must be right. It may lose connections, be started
again with whatever it knows then, be slow, and read from the client's segment or not; `random` decides.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from unittest import mock

import numpy as np
from msgspec import UNSET

from stream_server.client_api import data_connection, hello, session
from stream_server.client_api.retention import ENTRY_BYTES
from stream_server.messages.client import (
    Ack,
    Away,
    Block,
    Data,
    End,
    FieldSpec,
    Hello,
    Message,
    Open,
    Opened,
    Reason,
    Refusal,
    Routing,
    TimeSteps,
    Welcome,
)
from stream_server.messages.routing import Dealing

SIMULATION = 2
BLOCK = Block(field="u", dtype="<f8", shape=(4,), offset=(0,), count=(4,))
STEP_BYTES = ENTRY_BYTES + 32
MAX_RANKS = 3
TURN_S = 0.3
LONGEST_S = 2000.0


def values_of(index: int) -> np.ndarray:
    """The values that the client sends as step `index`."""
    return np.array([index, index + 0.5, -index, 7.0])


@dataclass(eq=False, kw_only=True)
class Peer:
    """Both ends of one connection; it is the client's `Dealer`, too.

    `sent` has, for each message, its steps; those from `told` on are under way as far as the client knows. `segment` is
    the server's descriptor of the client's memory.
    """

    study: "Study"
    rank: int
    num_ranks: int
    address: str = "ipc://model"
    is_tcp: bool = False
    needs_checksum: bool = False
    is_lost: bool = False
    is_open: bool = False
    segment: int | None = None
    known: set[int] = field(default_factory=set)
    under_way: deque[tuple[Message, list[bytes]]] = field(default_factory=deque)
    answers: deque[Message] = field(default_factory=deque)
    sent: list[range] = field(default_factory=list)
    told: int = 0
    next_sequence: int = 0
    received: int = 0
    durable: int = 0
    has_ended: bool = False

    def send(self, message: Message, payload: Sequence[bytes | np.ndarray] = ()) -> list[memoryview]:
        content = [memoryview(frame).tobytes() for frame in payload]
        if isinstance(message, Data):
            self._note(message)
        if not self.is_lost:
            self.under_way.append((message, content))
        return [memoryview(it) for it in content]

    def _note(self, data: Data) -> None:
        # The client may still send to a server of which there were as many ranks as this connection knows.
        every = self.study.dealing_among(self.num_ranks).stride
        steps = range(data.index, data.index + data.num_steps * every, every)
        assert data.sequence == len(self.sent)
        self.sent.append(steps)
        assert sum(map(len, self.sent[self.told :])) <= self.study.credit, "more is under way than the credit"
        places = [self.study.entered.index(index) for sent in self.sent[-2:] for index in sent]
        assert places == sorted(places), "steps are sent again in another order"
        self.study.was_sent |= set(steps)

    def receive(self) -> Message | None:
        if not self.answers:
            return None
        answer = self.answers.popleft()
        if isinstance(answer, Opened):
            self.study.was_known |= self.known
            self.study.received |= self.known
        if isinstance(answer, Ack):
            self.told = max(self.told, answer.received)
            self.study.received |= {index for steps in self.sent[: answer.received] for index in steps}
            self.study.safe |= {index for steps in self.sent[: answer.durable] for index in steps}
            # What came before a message is in every checkpoint that has this message.
            self.study.safe |= self.known if answer.durable else set()
        return answer


class Study:
    """All starts of the server.

    `safe` are the steps that the client need not hold: it was told that they are durable, or the server had them when
    it was asked. The client sent those of `was_sent`, and learnt from a server that it has those of `received`, or had
    those of `was_known` when a connection was opened.
    """

    def __init__(
        self,
        random: Random,
        *,
        routing: Routing,
        credit: int,
        window: int,
        may_pack: bool,
        known: set[int],
    ) -> None:
        self.random = random
        self.routing = routing
        self.credit = credit
        self.window_bytes = window * STEP_BYTES
        # Steps that follow each other quickly travel together.
        self.step_s = 0.0 if may_pack else 1.0
        self.now = 0.0
        self.incarnation = 0
        self.is_there = False
        self.known: set[int] = set()
        self.committed: set[int] = set()
        self.entered: list[int] = []
        self.safe: set[int] = set()
        self.received: set[int] = set()
        self.was_left_alone = False
        self.was_sent: set[int] = set()
        self.was_known: set[int] = set()
        self.peers: list[Peer] = []
        self.segments: list[int] = []
        self.start(known, random.randint(1, MAX_RANKS))

    def start(self, known: set[int], num_ranks: int) -> None:
        """Another start, that knows these steps; all connections are gone."""
        self.incarnation += 1
        self.is_there = True
        self.num_ranks = num_ranks
        self.known, self.committed = set(known), set(known)
        self.peers = []
        # The client takes what a new server knows to be in a checkpoint.
        self.safe |= known & set(self.entered)

    def stop(self) -> None:
        self.is_there, self.was_left_alone = False, True
        for peer in self.peers:
            peer.under_way.clear()

    @property
    def dealing(self) -> Dealing:
        return self.dealing_among(self.num_ranks)

    def dealing_among(self, num_ranks: int) -> Dealing:
        return Dealing(self.routing, num_ranks)

    def belongs(self, index: int, rank: int) -> bool:
        return rank == self.dealing.server_rank(SIMULATION, index)

    @property
    def must_be_held(self) -> set[int]:
        """The steps that no server is known to have, unless the client was left alone; and the newest that surely fit.

        Into the window fits what is under way beside them, or waits for room, or one message.
        """
        num = self.window_bytes // STEP_BYTES - (MAX_RANKS + 2) * self.credit
        newest = set(self.entered[-num:] if num > 0 else [])
        return (newest | (set() if self.was_left_alone else set(self.entered) - self.received)) - self.safe

    def take_turn(self) -> None:
        """The server hears some of what is under way, and says how far it is."""
        self.now += TURN_S
        assert self.now < LONGEST_S, "the client waits for ever"
        for peer in self.peers:
            for _ in range(self.random.randint(1, 4)):
                if peer.under_way and self.is_there:
                    self._hear(peer, *peer.under_way.popleft())

    def commit(self) -> None:
        """A checkpoint of what is known now is committed."""
        self.committed |= self.known
        for peer in self.peers:
            peer.durable = peer.next_sequence

    def _hear(self, peer: Peer, message: Message, content: list[bytes]) -> None:
        if isinstance(message, Open) and message.incarnation != self.incarnation:
            peer.answers.append(
                Refusal(reason=Reason.STALE_INCARNATION, text=f"the server is in incarnation {self.incarnation}")
            )
        elif isinstance(message, Open):
            for other in self.peers:
                other.is_open = other.is_open and other.rank != peer.rank
            peer.is_open = True
            if message.segment and self.random.random() < 0.7:
                peer.segment = os.dup(message.segment.descriptor)
                self.segments.append(peer.segment)
            mine = [index for index in self.known if self.belongs(index, peer.rank)]
            known = np.zeros(max(mine, default=-1) + 1, bool)
            known[mine] = True
            peer.known = set(mine)
            packed = np.packbits(known, bitorder="little").tobytes()
            peer.answers.append(
                Opened(
                    incarnation=self.incarnation,
                    credit=self.credit,
                    known=packed.hex(),
                    segment=UNSET if peer.segment is None else True,
                )
            )
        elif not peer.is_open:
            peer.answers.append(Refusal(reason=Reason.NOT_OPEN, text="nothing was opened on this connection"))
        elif isinstance(message, Data):
            self._take(peer, message, content)
            if self.random.random() < 0.5:
                self._acknowledge(peer)
        else:
            if isinstance(message, End):
                self._end(peer, message)
            self._acknowledge(peer)

    def _take(self, peer: Peer, data: Data, content: list[bytes]) -> None:
        assert (data.sequence, data.incarnation) == (peer.next_sequence, self.incarnation)
        steps = peer.sent[data.sequence]
        if data.in_segment:
            assert peer.segment is not None
            content = [os.pread(peer.segment, len(steps) * 32, int.from_bytes(content[0], "little"))]
        assert b"".join(content) == b"".join(values_of(index).tobytes() for index in steps)
        assert all(self.belongs(index, peer.rank) for index in steps)
        peer.next_sequence += 1
        self.known |= set(steps)

    def _end(self, peer: Peer, end: End) -> None:
        mine = [index for index in self.entered if self.belongs(index, peer.rank)]
        assert (end.share, end.total) == (len(mine), len(self.entered)), "the End is wrong"
        assert self.known.issuperset(mine), "the End came before all steps"
        peer.has_ended = True

    def _acknowledge(self, peer: Peer) -> None:
        peer.received = max(peer.received, self.random.randint(peer.received, peer.next_sequence), peer.durable)
        if not peer.under_way:
            peer.received = peer.next_sequence
        peer.answers.append(Ack(received=peer.received, durable=peer.durable, ended=peer.has_ended))

    def welcome(self) -> Welcome:
        """Rank 0's answer to a Hello."""
        return Welcome(
            study="s",
            simulation=SIMULATION,
            attempt=0,
            incarnation=self.incarnation,
            endpoints=tuple((str(rank),) for rank in range(self.num_ranks)),
            parameters={},
            time_steps=TimeSteps(num=None),
            fields=(FieldSpec(name="u", shape=(4,), dtype="<f8"),),
            routing=self.routing,
            window_bytes=self.window_bytes,
            if_server_away=Away.WAIT,
            wait_s=1e9,
        )

    @contextmanager
    def inhabited(self) -> Iterator[None]:
        """The client's modules meet this study, while the `with` block lasts."""
        clock = SimpleNamespace(monotonic=lambda: self.now)
        with (
            mock.patch.object(session, "Transport", partial(_Transport, self)),
            mock.patch.object(session, "ask", self._ask),
            mock.patch.object(session, "RELEASE_S", TURN_S),
            # The segment may be full, and steps that travel alone may be too small for it.
            mock.patch.object(session, "UNDER_WAY_BYTES", 0),
            mock.patch.object(data_connection, "SEGMENT_FROM_BYTES", self.random.choice([1, 33])),
            mock.patch.object(data_connection, "time", clock),
            mock.patch.object(hello, "time", clock),
        ):
            yield
        for segment in self.segments:
            os.close(segment)

    def _ask(self, question: Hello, watch: "Watch", *, who: str, timeout_s: float) -> Welcome:
        assert self.is_there
        return self.welcome()


class Watch:
    """The connection file, of which the client takes notice sooner or later."""

    slice_s = TURN_S
    may_change = True

    def __init__(self, study: Study) -> None:
        self.study = study
        self.file = SimpleNamespace(incarnation=study.incarnation, host="here", security=None)

    def newer_than(self, incarnation: int, *, look_now: bool = False) -> bool:
        if self.study.is_there and (look_now or self.study.random.random() < 0.5):
            self.file.incarnation = self.study.incarnation
        return bool(self.file.incarnation > incarnation)

    def was_touched(self) -> bool:
        return False


class _Transport:
    def __init__(self, study: Study, *, host: str, security: None, num_connections: int) -> None:
        self.study = study
        self.num_ranks = num_connections
        self.peers: list[Peer] = []

    def connect(self, addresses: Sequence[str]) -> Peer:
        peer = Peer(study=self.study, rank=int(addresses[0]), num_ranks=self.num_ranks)
        self.peers.append(peer)
        if self.study.is_there:
            self.study.peers.append(peer)
        return peer

    def wait(self, timeout_s: float) -> list[Peer]:
        self.study.take_turn()
        return [peer for peer in self.peers if peer.answers]

    def close(self, *, linger: bool) -> None:
        for peer in self.peers:
            peer.is_lost = True
