"""All that ever crosses a socket between a simulation and the server, as frozen values.

`wire.py` turns them into frames and back; `docs/protocol.md` fixes the bytes. Time steps travel as
*indices* (0, 1, 2 …); the label a user gives a step is `first + index * every` of the study's `TimeSteps`.
"""

from dataclasses import dataclass
from enum import IntEnum

PROTOCOL_VERSION = 1
MAX_PART_BYTES = 4 * 1024 * 1024
MAX_FIELDS = 64
MAX_CLIENT_RANKS = 2**16
MAX_DIMENSIONS = 8
ALL_FIELDS = 0xFFFF
ATTACHING = 0xFFFFFFFF
MAX_UNKNOWN_STEPS = 1_000_000


class Routing(IntEnum):
    """Which server rank gets a step: `(simulation + index) % R`, or `simulation % R`."""

    STEPS = 0
    SIMULATIONS = 1


class Away(IntEnum):
    """What a simulation does while the server says nothing: wait for it, go on without it, or end."""

    WAIT = 0
    CONTINUE = 1
    STOP = 2


class Reason(IntEnum):
    """Why a message was refused; the accompanying text is for people."""

    MALFORMED = 1
    WRONG_PROTOCOL = 2
    WRONG_STUDY = 3
    UNKNOWN_SIMULATION = 4
    STALE_ATTEMPT = 5
    STALE_EPOCH = 6
    WRONG_FIELDS = 7
    WRONG_BLOCKS = 8
    WRONG_STEP = 9
    OUTSIDE_WINDOW = 10
    NOT_OPEN = 11
    BUSY = 12
    NO_SIMULATION_LEFT = 13
    WRONG_KEY = 14
    CHECKSUM = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldSpec:
    """One field of a sample: its global shape in C order; `dtype` "" keeps what is sent."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSteps:
    """The labels of the time steps: first, first + every, …; `num` None when it is not known ahead."""

    num: int | None
    first: int = 0
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The part of one field that one client rank sends; `dtype` is the wire's, such as "<f8"."""

    field: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    count: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """Client rank to rank 0's control socket: who I am.

    `simulation` None asks for one. A client that nobody launched says `attempt` = ATTACHING: the
    server gives it the attempt.
    """

    study: str
    simulation: int | None
    attempt: int
    rank: int
    num_ranks: int
    parameters: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """Rank 0's answer to `Hello`: all that the client needs to know of the study.

    `endpoints[r]` lists the addresses of server rank r, the preferred one first. A client rank keeps at most
    `window_bytes` of what it sent until that is durable, and waits `wait_s` for a server that says nothing.
    """

    study: str
    simulation: int
    attempt: int
    epoch: int
    endpoints: tuple[tuple[str, ...], ...]
    parameters: dict[str, float]
    time_steps: TimeSteps
    fields: tuple[FieldSpec, ...]
    routing: Routing
    window_bytes: int
    if_server_away: Away
    wait_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """First message on a data connection: the blocks that this client rank will send, in this order."""

    study: str
    simulation: int
    attempt: int
    epoch: int
    rank: int
    num_ranks: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """Answer to `Open`: how many steps may be unacknowledged, and which indices need not be sent again.

    `known` is the server rank's ledger of the simulation: bit i (little-endian bit order) is index i.
    """

    epoch: int
    credit: int
    known: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """`num_steps` steps of this client rank for one server rank, or one part of one field of one step.

    The indices are `index, index + stride, …` with stride R (routing by steps) or 1 (by simulations).
    Whole (`field` = ALL_FIELDS): one payload frame per bit of `present` (bit i = block i of `Open`), each
    the concatenation of the steps' blocks in C order. Part (`field` = block number): `num_steps` is 1,
    one payload frame, at byte `offset` of that block. `checksum` is the CRC-32 of the payload frames in
    order, or None where the transport already guards the bytes.
    `sequence` counts the Data messages of one connection from 0; `last` is False for all parts of a step
    but the last.
    """

    simulation: int
    attempt: int
    epoch: int
    sequence: int
    index: int
    num_steps: int
    present: int
    field: int = ALL_FIELDS
    offset: int = 0
    last: bool = True
    checksum: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """This client rank has sent all: `share` distinct steps to this server rank, `total` to all of them."""

    simulation: int
    attempt: int
    epoch: int
    share: int
    total: int


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

    study: str
    simulation: int
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Invalidated:
    """Rank 0 has recorded an `Invalidate`."""

    simulation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """The study has ended: answer to a `Hello` that comes too late."""

    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The server ignored a message. `sequence` is that of the Data it concerns, or None."""

    reason: Reason
    text: str
    sequence: int | None = None


Message = Hello | Welcome | Open | Opened | Data | End | Ping | Ack | Invalidate | Invalidated | Stop | Refusal
