"""The state of attempts: the connections of their client ranks, and their steps until they are settled.

Plain state; `Admission`, `Assembly` and `Settlement` act on it. Receiver thread.
"""

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from stream_server.messages.client import Ack, Data, End, Open, Reason
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.client_segment import ClientSegment
from stream_server.server.intake.filling import Array, Payload, SharedRows, Unfit
from stream_server.server.intake.layout import BlockLayout, Place
from stream_server.server.intake.ledger import LedgerEntry

# The header of Data: what lies before its sequence and index, these two, and what lies behind them.
BEFORE = struct.calcsize("<4sHHQII")
NUMBERS = struct.Struct("<QQ")
BEHIND = BEFORE + NUMBERS.size


class CreditPhase(Enum):
    """Whether an attempt holds a reservation of credit, or its client ranks wait for one."""

    NONE = auto()
    WAITING = auto()
    RESERVED = auto()


def why_stale(simulation: int, attempt: int, *, current: int, end_state: str = "") -> str:
    """Why nothing is accepted from this attempt; `end_state` is the simulation's terminal one, "" if it has none."""
    if end_state:
        return f"simulation {simulation} is {end_state.replace('_', ' ')} already"
    if attempt == current:
        return f"attempt {attempt} of simulation {simulation} is over"
    return f"attempt {attempt} of simulation {simulation} is not the current one, which is attempt {current}"


@dataclass(eq=False, kw_only=True, slots=True)
class PendingMessages:
    """Consecutive Data messages of one connection, of which `num_steps` steps are not settled yet.

    Those below sequence `last` have `steps_per_message` each, which are settled in their order if they are more than
    one; those from there up to `end` have no new steps.
    """

    last: int
    end: int
    num_steps: int
    steps_per_message: int

    @property
    def received(self) -> int:
        """The messages of a smaller sequence are settled."""
        if not self.num_steps:
            return self.end
        return self.last + -self.num_steps // self.steps_per_message


@dataclass(eq=False, kw_only=True, slots=True)
class MessageSeries:
    """Messages of whole steps that differ from the one before in nothing but sequence and step, each one further on.

    A simulation sends little else, and such a message need be neither decoded nor checked again; one that is not
    followed by its like is a series of length one. `sequence` and `index` are what the next message must have, and
    `credit` is for how many more steps the simulation has credit. The steps from `first` on are in `slots` and not
    settled yet; `finite`: all their values are known to be finite. A message brings a payload for each of `places`,
    with a `checksum` or None or `in_segment`, and nothing of the `absent` fields.
    """

    header: bytes
    places: tuple[Place, ...]
    absent: tuple[str, ...]
    in_segment: bool
    checksum: int | None
    stride: int
    num_steps: int
    sequence: int
    index: int
    credit: int
    first: int = 0
    slots: list[int] = field(default_factory=list)
    finite: bool = True

    def goes_on(self, header: bytes) -> bool:
        """Whether this is the header of the next message."""
        return header[:BEFORE] + header[BEHIND:] == self.header and NUMBERS.unpack_from(header, BEFORE) == (
            self.sequence,
            self.index,
        )

    def add(self, slots: list[int], finite: bool) -> None:
        """Note that the steps of the next message are in these slots."""
        if not self.slots:
            self.first = self.index
        self.slots += slots
        if not finite:
            self.finite = False
        self.sequence += 1
        self.index += self.num_steps * self.stride
        self.credit -= self.num_steps

    def take(self) -> tuple[range, list[int], bool]:
        """The indices and slots of the steps that are not settled yet, and whether all are finite; forgets them."""
        indices = range(self.first, self.first + len(self.slots) * self.stride, self.stride)
        slots, finite = self.slots, self.finite
        self.slots, self.finite = [], True
        return indices, slots, finite


Origin = tuple["Connection", PendingMessages]


@dataclass(eq=False, slots=True)
class StepRun:
    """Steps of one simulation that are all there and are settled together, `absent` fields left out.

    `reservation` is the one under which they came, `origins` are the messages that are settled with them.
    """

    attempt: "AttemptState"
    reservation: int
    indices: range
    slots: list[int]
    absent: tuple[str, ...]
    origins: list[Origin]

    def single(self, position: int) -> "StepRun":
        """One of the steps alone."""
        indices, slots = self.indices[position : position + 1], self.slots[position : position + 1]
        return StepRun(self.attempt, self.reservation, indices, slots, self.absent, self.origins)


@dataclass(eq=False, slots=True)
class PartialStep:
    """A step that comes in pieces and is not yet all there.

    `senders` has a bit for each client rank whose part is there, `present[field]` for each that sent a part of the
    field; `parts` holds the bytes that came of blocks in several parts, by client rank and block. `rows` has what came
    of ragged fields that client ranks share. `origins` are the messages that are settled with it.
    """

    attempt: "AttemptState"
    reservation: int
    index: int
    slot: int
    senders: int = 0
    present: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: SharedRows = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)

    def forget(self, rank: int) -> None:
        """Drop what this client rank has sent of it."""
        self.senders &= ~(1 << rank)
        self.present = {name: left for name, ranks in self.present.items() if (left := ranks & ~(1 << rank))}
        self.parts = {part: num_bytes for part, num_bytes in self.parts.items() if part[0] != rank}
        self.rows = {of: rows for of, rows in self.rows.items() if of[1] != rank}

    def torn_field(self) -> str | None:
        """A field of which only some client ranks sent their part."""
        owners = self.attempt.layout.owners
        return next((name for name, ranks in self.present.items() if ranks != owners[name]), None)


@dataclass(eq=False, kw_only=True, slots=True)
class PartialStatics:
    """The fields that are sent once per simulation, until all has come; `senders` has a bit for each client rank.

    `arrays` are those of fields of one shape, `rows` what client ranks sent of ragged ones, by field and client rank.
    """

    layout: BlockLayout
    arrays: dict[str, Array] = field(default_factory=dict)
    rows: dict[tuple[str, int], Array] = field(default_factory=dict)
    senders: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Every client rank that has a part of them has sent it."""
        return self.layout.complete and self.senders == self.layout.owners

    def forget(self) -> None:
        """Drop what has come."""
        self.arrays, self.rows = {}, {}


@dataclass(eq=False, kw_only=True, slots=True)
class AttemptState:
    """One attempt of a simulation as this rank sees it.

    Its steps are accepted while it is `running`, which it never is again once it was not. `end_state` is the
    simulation's terminal state, "" while it has none, and `end_reason` why it ended so. `num_expected` is how many
    steps this rank is to settle, `total` how many all ranks are; None while that is not known. `share_complete`: this
    rank has settled as many. `num_known` is how many steps were settled before client rank 0 opened, and will come
    again or be left out; `num_unsaved` how many came since the last checkpoint was taken. `repeated` counts steps that
    its clients sent although this rank had them. `to_compare` are steps of an earlier attempt that this one has yet to
    send again, for comparison; `differs` says what it sent otherwise. `num_waiting` steps wait for room in the buffer.
    `reservation` numbers the reservations of credit, to tell the steps of this one from those that an earlier one left
    behind. `sender` is the connection with a series of which steps are not settled yet.
    """

    simulation: int
    attempt: int
    entry: LedgerEntry
    layout: BlockLayout = field(default_factory=lambda: BlockLayout(fields={}, num_ranks=1))
    num_expected: int | None = None
    total: int | None = None
    running: bool = True
    end_state: str = ""
    end_reason: str = ""
    share_complete: bool = False
    credit: CreditPhase = CreditPhase.NONE
    reservation: int = 0
    num_waiting: int = 0
    received: int = 0
    repeated: int = 0
    to_compare: set[int] = field(default_factory=set)
    differs: str = ""
    partial_steps: dict[int, PartialStep] = field(default_factory=dict)
    num_known: int | None = None
    num_unsaved: int = 0
    ends: dict[int, End] = field(default_factory=dict)
    connections: dict[int, "Connection"] = field(default_factory=dict)
    sender: "Connection | None" = None
    statics: PartialStatics = field(default_factory=lambda: PartialStatics(layout=BlockLayout(fields={}, num_ranks=1)))

    @property
    def finished(self) -> bool:
        """All of the simulation is settled, on all ranks."""
        return self.end_state == SimulationPhase.FINISHED

    @property
    def stopped_early(self) -> bool:
        """Whether nothing more is wanted of the simulation, which its clients are told."""
        return self.end_state == SimulationPhase.STOPPED_EARLY

    @property
    def why_ended(self) -> str:
        """Why nothing more is wanted of the simulation."""
        return f"simulation {self.simulation} is finished" if self.finished else self.end_reason

    def knows(self, index: int) -> bool:
        """Whether a step need not be sent again."""
        return index in self.entry.settled and index not in self.to_compare

    def packed_known(self) -> bytes:
        """A bit for each step that need not be sent again."""
        packed = bytearray(self.entry.settled.packed())
        for index in self.to_compare:
            packed[index >> 3] &= ~(1 << (index & 7))
        return bytes(packed)

    @property
    def num_under_way(self) -> int:
        """Steps of this attempt that hold a slot and are not yet in the stream."""
        return len(self.partial_steps) + self.num_waiting

    @property
    def blocked(self) -> bool:
        """The simulation may be waiting for us, so its own progress clock must not run."""
        return self.num_waiting > 0 or self.credit is CreditPhase.WAITING

    def why_refused(self, attempt: int) -> str:
        """Why nothing is accepted from a client of `attempt`, where this is the state of the current one."""
        return why_stale(self.simulation, attempt, current=self.attempt, end_state=self.end_state)


@dataclass(eq=False, kw_only=True, slots=True)
class Connection:
    """One client rank's connection to this server rank.

    `next_sequence` is what its next Data message must carry; all messages below `received` are settled and in the
    stream. The acknowledgements keep those below which all are in a committed checkpoint, `durable`, and the client
    was told that they are received, `acknowledged`; `num_owed` steps, or more, lie between that and `received`.
    `required` has a bit for each block that no step may lack, `everything` one for each block. `alone`: the simulation
    has no other client rank. `ended`: this one has said that it has sent all. `static_bytes` have come for each of
    `static_places`, the blocks that are sent once. `series` tells which message is likely to come next. `segment` is
    memory that the client shares with this server rank, or None.
    """

    peer: bytes
    opening: Open
    attempt: AttemptState
    rank: int
    places: tuple[Place, ...]
    static_places: tuple[Place, ...]
    required: int
    everything: int
    alone: bool
    static_bytes: list[int]
    ended: bool = False
    next_sequence: int = 0
    received: int = 0
    durable: int = 0
    acknowledged: int = 0
    num_owed: int = 0
    pending: deque[PendingMessages] = field(default_factory=deque)
    series: MessageSeries | None = None
    segment: ClientSegment | None = None

    def close(self) -> None:
        """Read no more from the client's memory."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def payload(self, message: Data | MessageSeries, places: Sequence[Place], payload: Payload) -> Payload:
        """The blocks of whole steps: the rest of their message, or what that says is in the segment.

        Raises:
            Unfit: there is no segment, or no such place in it.
        """
        if not message.in_segment:
            return payload
        if self.segment is None or any(place.row_bytes for place in places):
            raise Unfit(Reason.MALFORMED, "the steps of this connection do not lie in a segment")
        return self.segment.payload(payload, [message.num_steps * place.num_bytes for place in places])

    @property
    def has_statics(self) -> bool:
        """All blocks of the fields that are sent once have come."""
        return all(place.num_bytes == num for place, num in zip(self.static_places, self.static_bytes, strict=True))

    def ack(self, *, stop: bool = False) -> Ack:
        """How far this connection has come."""
        ended = self.ended and self.attempt.share_complete
        return Ack(received=self.received, durable=self.durable, ended=ended, stop=stop)

    def present(self, data: Data) -> tuple[Place, ...]:
        """The places of the blocks that a message brings."""
        if data.present == self.everything:
            return self.places
        return tuple(place for i, place in enumerate(self.places) if data.present >> i & 1)

    def count(self, num_steps: int, num_messages: int = 1) -> PendingMessages:
        """Count the next Data messages, which have this many steps to settle."""
        self.next_sequence += num_messages
        message = PendingMessages(
            last=self.next_sequence,
            end=self.next_sequence,
            num_steps=num_steps,
            steps_per_message=num_steps // num_messages,
        )
        self.pending.append(message)
        return message

    def count_settled(self, num_steps: int) -> None:
        """Count a Data message without new steps; it is acknowledged together with the one before."""
        self.next_sequence += 1
        self.num_owed += num_steps
        if self.pending:
            self.pending[-1].end = self.next_sequence
        else:
            self.received = self.next_sequence

    def move_mark(self, message: PendingMessages, num_steps: int) -> None:
        """Move `received` over all that is done with: steps of a message are in the stream or refused."""
        message.num_steps -= num_steps
        while self.pending:
            first = self.pending[0]
            self.num_owed += (first.received - self.received) * first.steps_per_message
            self.received = first.received
            if first.num_steps:
                break
            self.pending.popleft()
