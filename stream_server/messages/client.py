"""The messages between a simulation and the server, as frozen values.

`wire.py` turns them into frames and back; `docs/reference/protocol.md` fixes those. Time steps travel as
*indices* (0, 1, 2 …); the label a user gives a step is `first + index * every` of the study's `TimeSteps`.
"""

import math
from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from stream_server.messages.codec import JsonMessage, JsonObject

PROTOCOL_VERSION: Literal[4] = 4
MAX_PART_BYTES = 4 * 1024 * 1024
MAX_FIELDS = 64
MAX_CLIENT_RANKS = 2**16
MAX_DIMENSIONS = 8
ALL_FIELDS = 0xFFFF
PER_STEP: Literal["step"] = "step"
PER_SIMULATION: Literal["simulation"] = "simulation"
ATTACHING = 0xFFFFFFFF
MAX_UNKNOWN_STEPS = 1_000_000
LARGEST = 2**63 - 1
LARGEST_FIELD = 2**59
# NumPy's names of the types that every client and server knows.
DTYPES = ("", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Label = Annotated[int, Meta(ge=-LARGEST - 1, le=LARGEST)]
# The server keeps a bit for each client rank.
NumRanks = Annotated[int, Meta(ge=1, le=MAX_CLIENT_RANKS)]
Credit = Annotated[int, Meta(ge=1, le=2**32 - 1)]
NotNegative = Annotated[float, Meta(ge=0)]
# A text of C ends at a zero character.
Text = Annotated[str, Meta(max_length=2**16 - 1, pattern=r"\A[^\0]*\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=2**16 - 1, pattern=r"\A[^\0]*\Z")]
Token = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Digits = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})*\Z")]
Parameters = Annotated[dict[Text, float], Meta(max_length=2**16 - 1)]
Addresses = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=16)]
Shape = Annotated[tuple[Positive, ...], Meta(max_length=MAX_DIMENSIONS)]
Offset = Annotated[tuple[Count, ...], Meta(max_length=MAX_DIMENSIONS)]


class Routing(StrEnum):
    """The server rank that gets a step: `(simulation + index) % R`, or `simulation % R`."""

    STEPS = auto()
    SIMULATIONS = auto()


class Away(StrEnum):
    """The reaction of a simulation to a server that does not answer: wait for it, go on without it, or end."""

    WAIT = auto()
    CONTINUE = auto()
    STOP = auto()


class Reason(StrEnum):
    """The reason of a refusal; the accompanying text is for people."""

    MALFORMED = auto()
    WRONG_PROTOCOL = auto()
    WRONG_STUDY = auto()
    UNKNOWN_SIMULATION = auto()
    STALE_ATTEMPT = auto()
    STALE_INCARNATION = auto()
    WRONG_FIELDS = auto()
    WRONG_BLOCKS = auto()
    WRONG_STEP = auto()
    BEYOND_CREDIT = auto()
    NOT_OPEN = auto()
    BUSY = auto()
    NO_SIMULATION_LEFT = auto()
    WRONG_KEY = auto()
    CHECKSUM = auto()


class FieldSpec(JsonObject, frozen=True, kw_only=True):
    """One field of a sample: its global shape in C order; `dtype` "" keeps what is sent.

    `per`: it is sent with each time step, or once per simulation. The first extent of a `ragged` field differs, from
    step to step or from simulation to simulation, and `shape` has the largest.
    """

    name: Name
    shape: Shape
    dtype: str = ""
    optional: bool = False
    per: Literal["step", "simulation"] = PER_STEP
    ragged: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it is sent once per simulation."""
        return self.per == PER_SIMULATION

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name!r} has the unknown dtype {self.dtype!r}")
        if self.ragged and not self.shape:
            raise ValueError(f"field {self.name!r} has no extent that could differ")
        _check_size(self.name, self.shape)


class TimeSteps(JsonObject, frozen=True, kw_only=True):
    """The labels of the time steps: first, first + every, …; `num` None when it is not known ahead."""

    num: Positive | None
    first: Label = 0
    every: Positive = 1

    def __post_init__(self) -> None:
        if self.first + ((self.num or 1) - 1) * self.every > LARGEST:
            raise ValueError("the last time step is above 2^63 - 1")

    @property
    def limit(self) -> int:
        """All indices are below."""
        return MAX_UNKNOWN_STEPS if self.num is None else self.num

    def label(self, index: int) -> int:
        return self.first + index * self.every

    def index(self, label: Any) -> Any:
        """The index of a time step, or of each in an array."""
        return (label - self.first) // self.every


class Block(JsonObject, frozen=True, kw_only=True):
    """The part of one field that one client rank sends; `dtype` is the wire's, such as "<f8"."""

    field: Name
    dtype: str
    shape: Shape
    offset: Offset
    count: Shape

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES[1:]:
            raise ValueError(f"the block of field {self.field!r} has the unknown dtype {self.dtype!r}")
        if not len(self.shape) == len(self.offset) == len(self.count):
            raise ValueError(f"shape, offset and count of field {self.field!r} differ in their number of dimensions")
        extents = zip(self.shape, self.offset, self.count, strict=True)
        if any(offset + count > size for size, offset, count in extents):
            raise ValueError(f"the block of field {self.field!r} reaches out of the field")
        _check_size(self.field, self.shape)


class ControlMessage(JsonMessage, frozen=True, kw_only=True):
    """A message that is not packed."""

    protocol: Literal[4] = PROTOCOL_VERSION


class Hello(ControlMessage, frozen=True, kw_only=True):
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

    def __post_init__(self) -> None:
        _check_rank(self.rank, self.num_ranks)


class Welcome(ControlMessage, frozen=True, kw_only=True):
    """Rank 0's answer to `Hello`: all that the client needs to know of the study.

    `endpoints[r]` lists the addresses of server rank r, the preferred one first. A client rank keeps at most
    `window_bytes` of what it sent until that is durable, and waits `wait_s` for a server that says nothing.
    """

    study: Text
    simulation: Count
    attempt: U32
    incarnation: U32
    endpoints: Annotated[tuple[Addresses, ...], Meta(min_length=1, max_length=2**16 - 1)]
    parameters: Parameters
    time_steps: TimeSteps
    fields: Annotated[tuple[FieldSpec, ...], Meta(max_length=MAX_FIELDS)]
    routing: Routing
    window_bytes: Count
    if_server_away: Away
    wait_s: NotNegative

    def __post_init__(self) -> None:
        _check_names(field.name for field in self.fields)


class SegmentOffer(JsonObject, frozen=True, kw_only=True):
    """Memory that a client shares with a server on its node: a memfd, which is open in the client as `descriptor`.

    It has `bytes` bytes and begins with those of `token`: another process may have the same number elsewhere.
    """

    pid: Count
    descriptor: Count
    bytes: Count
    token: Token


class Open(ControlMessage, frozen=True, kw_only=True):
    """First message on a data connection: the blocks that this client rank will send, in this order.

    `static_blocks` are those of the fields that are sent once per simulation; of a ragged one a block is the rows of
    this client rank, as many as it has, and begins at 0: the server puts those of all ranks one after the other.
    In the `segment` the server may read the steps that `Data` says are there.
    """

    study: Text
    simulation: Count
    attempt: U32
    incarnation: U32
    rank: U32
    num_ranks: NumRanks
    blocks: Annotated[tuple[Block, ...], Meta(max_length=MAX_FIELDS)]
    static_blocks: Annotated[tuple[Block, ...], Meta(max_length=MAX_FIELDS)] = ()
    segment: SegmentOffer | UnsetType = UNSET

    def __post_init__(self) -> None:
        _check_rank(self.rank, self.num_ranks)
        _check_names(block.field for block in (*self.blocks, *self.static_blocks))

    @property
    def without_segment(self) -> "Open":
        """The same message without the offer: equal on all connections of a client rank."""
        return replace(self, segment=UNSET)


class Opened(ControlMessage, frozen=True, kw_only=True):
    """Answer to `Open`: how many steps may be unacknowledged, and which indices need not be sent again.

    `known` is the server rank's ledger of the simulation: bit i (little-endian bit order) of
    these bytes, each two hexadecimal digits, is index i. `segment`: the server reads from the one that was offered.
    """

    incarnation: U32
    credit: Credit
    known: Digits
    segment: bool | UnsetType = UNSET


class Data(Struct, frozen=True, kw_only=True):
    """`num_steps` steps of this client rank for one server rank, or one part of one field of one step.

    The indices are `index, index + stride, …` with the stride of `routing.Dealing`.
    Whole (`field` = ALL_FIELDS): one payload frame per bit of `present` (bit i = block i of `Open`), each
    the concatenation of the steps' blocks in C order. A block of a ragged field has as many rows as its bytes make,
    and is never in a message of several steps. Part (`field` = block number): `num_steps` is 1,
    one payload frame, at byte `offset` of that block. `checksum` is the CRC-32 of the payload frames in
    order, or None where the transport already guards the bytes.
    `sequence` counts the Data messages of one connection from 0; `last` is False for all parts of a step
    but the last. `static`: a part of a block in `static_blocks` of `Open`, all of which come, in parts and with the
    index 0, before the first step of the connection. `in_segment`: whole steps, whose payload frames lie one behind the
    other in the segment of the client; the only frame that comes is their offset there.
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
    in_segment: bool = False
    checksum: int | None = None


class End(ControlMessage, frozen=True, kw_only=True):
    """A client rank has sent all: `share` distinct steps to this server rank, `total` to all of them."""

    simulation: Count
    attempt: U32
    incarnation: U32
    share: Count
    total: Count


class Ping(ControlMessage, frozen=True, kw_only=True):
    """Asks for an `Ack`: acknowledgements to a slow peer may have been dropped."""


class Ack(Struct, frozen=True, kw_only=True):
    """Cumulative marks: Data messages with a smaller sequence are received, and durable.

    `ended`: the End of this connection is settled: every step of its share is accepted or rejected.
    `stop`: the study has ended; nothing more is wanted.
    """

    received: int
    durable: int
    ended: bool = False
    stop: bool = False


class Invalidate(ControlMessage, frozen=True, kw_only=True):
    """Client rank to the control socket: withdraw what this simulation sent; do not try again."""

    study: Text
    simulation: Count
    attempt: U32
    reason: Text


class Invalidated(ControlMessage, frozen=True, kw_only=True):
    """Rank 0 has recorded an `Invalidate`."""

    simulation: Count


class Stop(ControlMessage, frozen=True, kw_only=True):
    """The study has ended: answer to a `Hello` that comes too late."""

    text: Text = ""


class Refusal(ControlMessage, frozen=True, kw_only=True):
    """The server ignored a message. `sequence` is that of the Data it concerns, or None."""

    reason: Reason
    text: Text
    sequence: Count | None = None


def _check_rank(rank: int, num_ranks: int) -> None:
    if rank >= num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks} ranks")


def _check_size(name: str, shape: tuple[int, ...]) -> None:
    if math.prod(shape) > LARGEST_FIELD:
        raise ValueError(f"field {name!r} has more than 2^59 values")


def _check_names(names: Iterable[str]) -> None:
    names = list(names)
    if len(set(names)) < len(names):
        raise ValueError("a field occurs twice")


Control = Hello | Welcome | Open | Opened | End | Ping | Invalidate | Invalidated | Stop | Refusal
Message = Control | Data | Ack
