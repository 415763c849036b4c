"""The messages between a simulation and the server, as frozen values.

`wire.py` turns them into frames and back; `docs/reference/protocol.md` fixes those. Time steps travel as
*indices* (0, 1, 2 …); the label a user gives a step is `first + index * every` of the study's `TimeSteps`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from stream_server.storage.typed import Length, OneOf, Range

PROTOCOL_VERSION = 4
MAX_PART_BYTES = 4 * 1024 * 1024
MAX_FIELDS = 64
MAX_CLIENT_RANKS = 2**16
MAX_DIMENSIONS = 8
ALL_FIELDS = 0xFFFF
PER_STEP, PER_SIMULATION = "step", "simulation"
ATTACHING = 0xFFFFFFFF
MAX_UNKNOWN_STEPS = 1_000_000
LARGEST = 2**63 - 1
LARGEST_FIELD = 2**59
# NumPy's names of the types that every client and server knows.
DTYPES = ("", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")

U32 = Annotated[int, Range(0, 2**32 - 1)]
Count = Annotated[int, Range(0, LARGEST)]
Positive = Annotated[int, Range(1, LARGEST)]
Label = Annotated[int, Range(-LARGEST - 1, LARGEST)]
# The server keeps a bit for each client rank.
NumRanks = Annotated[int, Range(1, MAX_CLIENT_RANKS)]
Credit = Annotated[int, Range(1, 2**32 - 1)]
NotNegative = Annotated[float, Range(0.0, math.inf)]
Text = Annotated[str, Length(0, 2**16 - 1)]
Name = Annotated[str, Length(1, 2**16 - 1)]
Parameters = Annotated[dict[Text, float], Length(0, 2**16 - 1)]
Addresses = Annotated[tuple[Text, ...], Length(1, 16)]
Shape = Annotated[tuple[Positive, ...], Length(0, MAX_DIMENSIONS)]
Offset = Annotated[tuple[Count, ...], Length(0, MAX_DIMENSIONS)]


class Routing(IntEnum):
    """The server rank that gets a step: `(simulation + index) % R`, or `simulation % R`."""

    STEPS = 0
    SIMULATIONS = 1


class Away(IntEnum):
    """The reaction of a simulation to a server that does not answer: wait for it, go on without it, or end."""

    WAIT = 0
    CONTINUE = 1
    STOP = 2


class Reason(IntEnum):
    """The reason of a refusal; the accompanying text is for people."""

    MALFORMED = 1
    WRONG_PROTOCOL = 2
    WRONG_STUDY = 3
    UNKNOWN_SIMULATION = 4
    STALE_ATTEMPT = 5
    STALE_INCARNATION = 6
    WRONG_FIELDS = 7
    WRONG_BLOCKS = 8
    WRONG_STEP = 9
    BEYOND_CREDIT = 10
    NOT_OPEN = 11
    BUSY = 12
    NO_SIMULATION_LEFT = 13
    WRONG_KEY = 14
    CHECKSUM = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldSpec:
    """One field of a sample: its global shape in C order; `dtype` "" keeps what is sent.

    `per`: it is sent with each time step, or once per simulation. The first extent of a `ragged` field differs, from
    step to step or from simulation to simulation, and `shape` has the largest.
    """

    name: Name
    shape: Shape
    dtype: Annotated[str, OneOf(DTYPES)] = ""
    optional: bool = False
    per: Annotated[str, OneOf((PER_STEP, PER_SIMULATION))] = PER_STEP
    ragged: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it is sent once per simulation."""
        return self.per == PER_SIMULATION

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        if self.ragged and not self.shape:
            return f"field {self.name!r} has no extent that could differ"
        return _size_problem(self.name, self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSteps:
    """The labels of the time steps: first, first + every, …; `num` None when it is not known ahead."""

    num: Positive | None
    first: Label = 0
    every: Positive = 1

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        last = self.first + ((self.num or 1) - 1) * self.every
        return None if last <= LARGEST else "the last time step is above 2^63 - 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The part of one field that one client rank sends; `dtype` is the wire's, such as "<f8"."""

    field: Name
    dtype: Annotated[str, OneOf(DTYPES[1:])]
    shape: Shape
    offset: Offset
    count: Shape

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        if not len(self.shape) == len(self.offset) == len(self.count):
            return f"shape, offset and count of field {self.field!r} differ in their number of dimensions"
        extents = zip(self.shape, self.offset, self.count, strict=True)
        if any(offset + count > size for size, offset, count in extents):
            return f"the block of field {self.field!r} reaches out of the field"
        return _size_problem(self.field, self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """Client rank to rank 0's control socket: the identity of the client.

    `simulation` None asks for one. A client that nobody launched says `attempt` = ATTACHING: the
    server gives it the attempt.
    """

    study: Text
    simulation: Count | None
    attempt: U32
    rank: U32
    num_ranks: NumRanks
    parameters: Parameters | None = None

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        return _rank_problem(self.rank, self.num_ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """Rank 0's answer to `Hello`: all that the client needs to know of the study.

    `endpoints[r]` lists the addresses of server rank r, the preferred one first. A client rank keeps at most
    `window_bytes` of what it sent until that is durable, and waits `wait_s` for a server that says nothing.
    """

    study: Text
    simulation: Count
    attempt: U32
    incarnation: U32
    endpoints: Annotated[tuple[Addresses, ...], Length(1, 2**16 - 1)]
    parameters: Parameters
    time_steps: TimeSteps
    fields: Annotated[tuple[FieldSpec, ...], Length(0, MAX_FIELDS)]
    routing: Routing
    window_bytes: Count
    if_server_away: Away
    wait_s: NotNegative

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        return _repetition(field.name for field in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """First message on a data connection: the blocks that this client rank will send, in this order.

    `static_blocks` are those of the fields that are sent once per simulation; of a ragged one a block is the rows of
    this client rank, as many as it has, and begins at 0: the server puts those of all ranks one after the other.
    """

    study: Text
    simulation: Count
    attempt: U32
    incarnation: U32
    rank: U32
    num_ranks: NumRanks
    blocks: Annotated[tuple[Block, ...], Length(0, MAX_FIELDS)]
    static_blocks: Annotated[tuple[Block, ...], Length(0, MAX_FIELDS)] = ()

    def problem(self) -> str | None:
        """The problem of the attributes together; None if there is none."""
        blocks = (*self.blocks, *self.static_blocks)
        return _rank_problem(self.rank, self.num_ranks) or _repetition(block.field for block in blocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """Answer to `Open`: how many steps may be unacknowledged, and which indices need not be sent again.

    `known` is the server rank's ledger of the simulation: bit i (little-endian bit order) is index i.
    """

    incarnation: U32
    credit: Credit
    known: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """`num_steps` steps of this client rank for one server rank, or one part of one field of one step.

    The indices are `index, index + stride, …` with the stride of `routing.Dealing`.
    Whole (`field` = ALL_FIELDS): one payload frame per bit of `present` (bit i = block i of `Open`), each
    the concatenation of the steps' blocks in C order. A block of a ragged field has as many rows as its bytes make,
    and is never in a message of several steps. Part (`field` = block number): `num_steps` is 1,
    one payload frame, at byte `offset` of that block. `checksum` is the CRC-32 of the payload frames in
    order, or None where the transport already guards the bytes.
    `sequence` counts the Data messages of one connection from 0; `last` is False for all parts of a step
    but the last. `static`: a part of a block in `static_blocks` of `Open`, all of which come, in parts and with the
    index 0, before the first step of the connection.
    """

    simulation: int
    attempt: int
    incarnation: int
    sequence: int
    index: int
    num_steps: int
    present: int
    field: int = ALL_FIELDS
    offset: int = 0
    last: bool = True
    static: bool = False
    checksum: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """A client rank has sent all: `share` distinct steps to this server rank, `total` to all of them."""

    simulation: Count
    attempt: U32
    incarnation: U32
    share: Count
    total: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping:
    """Asks for an `Ack`: acknowledgements to a slow peer may have been dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Cumulative marks: Data messages with a smaller sequence are received, and durable.

    `ended`: the End of this connection is settled: every step of its share is accepted or rejected.
    `stop`: the study has ended; nothing more is wanted.
    """

    received: int
    durable: int
    ended: bool = False
    stop: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Invalidate:
    """Client rank to the control socket: withdraw what this simulation sent; do not try again."""

    study: Text
    simulation: Count
    attempt: U32
    reason: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Invalidated:
    """Rank 0 has recorded an `Invalidate`."""

    simulation: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """The study has ended: answer to a `Hello` that comes too late."""

    text: Text = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The server ignored a message. `sequence` is that of the Data it concerns, or None."""

    reason: Reason
    text: Text
    sequence: Count | None = None


def _rank_problem(rank: int, num_ranks: int) -> str | None:
    return None if rank < num_ranks else f"rank {rank} of {num_ranks} ranks"


def _size_problem(name: str, shape: tuple[int, ...]) -> str | None:
    return None if math.prod(shape) <= LARGEST_FIELD else f"field {name!r} has more than 2^59 values"


def _repetition(names: Iterable[str]) -> str | None:
    names = list(names)
    return None if len(set(names)) == len(names) else "a field occurs twice"


Control = Hello | Welcome | Open | Opened | End | Ping | Invalidate | Invalidated | Stop | Refusal
Message = Control | Data | Ack
