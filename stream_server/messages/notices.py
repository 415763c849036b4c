"""Notices between the receivers of the server ranks, and a channel that loses none of them. Pure.

Rank 0 tells the others how each simulation stands; they tell rank 0 how far their share of it has come. A notice
travels as one frame of JSON; it never passes through MPI, which belongs to the training threads.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stream_server.messages import codec
from stream_server.messages.codec import JsonMessage, JsonObject


class RankAlive(JsonMessage, frozen=True, kw_only=True):
    """Rank r to rank 0, its first notice: the rank is there."""

    rank: int


class AttemptNotice(JsonMessage, frozen=True, kw_only=True):
    """Rank 0 to all: this attempt is current, older ones are over; `key` is the public key that speaks for it.

    `goes_on`: it ran before this server did, so that what is known of it does not come twice.
    """

    simulation: int
    attempt: int
    parameters: Mapping[str, float]
    key: str | None = None
    goes_on: bool = False


class AttemptOver(JsonMessage, frozen=True, kw_only=True):
    """Rank 0 to all: this attempt has ended; what it left half-done goes, what was accepted stays."""

    simulation: int
    attempt: int


class Terminal(JsonMessage, frozen=True, kw_only=True):
    """Rank 0 to all: nothing more comes of this simulation; `state` says how it ended."""

    simulation: int
    state: str
    reason: str = ""


class AllTerminal(JsonMessage, frozen=True, kw_only=True):
    """Rank 0 to all: every simulation of the study has its terminal state and no other will come.

    With `round_over` those of this round have, and the next ones come once all their samples are trained.
    """

    states: Mapping[int, str]
    round_over: bool = False


class StopNotice(JsonMessage, frozen=True, kw_only=True):
    """Rank 0 to all: the study ends now."""

    reason: str


class Share(JsonMessage, frozen=True, kw_only=True):
    """Rank r to rank 0: how far its share of a simulation has come.

    `received` counts the steps that came in this attempt, the `repeated` ones too; `accepted` and `rejected` those of
    all attempts. `blocked`: steps wait for room in the buffer. `total` is the number of steps over all ranks, None
    while it is not known. `differs` says where the attempt sent other values than an earlier one, "" if it did not.
    """

    simulation: int
    attempt: int
    received: int
    blocked: bool
    accepted: int
    rejected: int
    complete: bool
    total: int | None
    repeated: int = 0
    differs: str = ""


class EndEarly(JsonMessage, frozen=True, kw_only=True):
    """Rank r to rank 0, also its own: the server class wants nothing more of this simulation."""

    simulation: int
    reason: str


Notice = RankAlive | AttemptNotice | AttemptOver | Terminal | AllTerminal | StopNotice | Share | EndEarly


class NumberedNotice(JsonObject, frozen=True, kw_only=True):
    """The contents of one frame: a numbered notice or none, and the number of notices received from the other side."""

    number: int
    received: int
    notice: Notice | None


encode = codec.encode
decode: Callable[[bytes], NumberedNotice] = codec.decoder(NumberedNotice)


@dataclass(kw_only=True, slots=True)
class Channel:
    """One end of an ordered channel: numbers outgoing notices, and keeps each until the other end has received it.

    Sockets lose what is under way when a connection breaks, so what is not acknowledged within `patience_s` is
    sent again, and what comes twice or too early is dropped. Times are any monotonic clock's.
    """

    patience_s: float = 1.0
    num_posted: int = 0
    num_delivered: int = 0
    num_received: int = 0
    _waiting: deque[NumberedNotice] = field(default_factory=deque)
    _sent_at: float | None = None
    _owes_answer: bool = False

    def post(self, notice: Notice) -> int:
        """Take a notice along; returns its number, which `num_delivered` exceeds once it has arrived."""
        number = self.num_posted
        self.num_posted += 1
        self._waiting.append(NumberedNotice(number=number, received=0, notice=notice))
        self._sent_at = None
        return number

    def renew(self) -> None:
        """Note that the other end has just appeared: earlier notices may never have reached it."""
        self._sent_at = None

    def outgoing(self, now: float) -> list[NumberedNotice]:
        """The notices that should go out now: new or overdue ones, or else an answer if one is owed."""
        numbered: list[NumberedNotice] = []
        if self._waiting and (self._sent_at is None or now - self._sent_at >= self.patience_s):
            self._sent_at = now
            numbered = [
                NumberedNotice(number=waiting.number, received=self.num_received, notice=waiting.notice)
                for waiting in self._waiting
            ]
        elif self._owes_answer:
            numbered = [NumberedNotice(number=self.num_posted, received=self.num_received, notice=None)]
        self._owes_answer = False
        return numbered

    def receive(self, numbered: NumberedNotice) -> Notice | None:
        """The notice that came, None if it came before or another one is missing before it."""
        while self._waiting and self._waiting[0].number < numbered.received:
            self._waiting.popleft()
            self.num_delivered += 1
        if numbered.notice is None:
            return None
        self._owes_answer = True
        if numbered.number != self.num_received:
            return None
        self.num_received += 1
        return numbered.notice
