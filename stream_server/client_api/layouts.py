"""What each kind of message holds, attribute by attribute, and the bounds that it must keep.

`Data` alone is not here: it comes a hundred thousand times a second and has a fixed layout in wire.py.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from stream_server.client_api.messages import (
    MAX_CLIENT_RANKS,
    MAX_DIMENSIONS,
    MAX_FIELDS,
    Ack,
    Away,
    Block,
    End,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)
from stream_server.client_api.packing import (
    BLOB,
    COUNT,
    FLAG,
    LABEL,
    PROSE,
    REAL,
    TEXT,
    U8,
    U16,
    U32,
    Choice,
    Codec,
    Integer,
    Many,
    Maybe,
    Named,
    Record,
    Source,
)
from stream_server.errors import MalformedMessage

LARGEST = 2**63 - 1
LARGEST_FIELD = 2**59

DTYPES = ("", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")


def wire_dtype(dtype: Any) -> np.dtype:
    """The little-endian dtype that stands for `dtype` on the wire.

    Raises:
        ValueError: it is not numeric, or not one of the types every client and server knows.
    """
    little: np.dtype = np.dtype(dtype).newbyteorder("<")
    if little.str not in DTYPES:
        allowed = "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128"
        raise ValueError(f"dtype {np.dtype(dtype)} cannot be sent, only {allowed} can")
    return little


class DType(Codec[str]):
    """A numeric type by its number in `DTYPES`; 0 says that none is prescribed."""

    def __init__(self, *, required: bool) -> None:
        self._lowest = int(required)

    def write(self, value: str) -> bytes:
        code = DTYPES.index(wire_dtype(value).str if value else "")
        if code < self._lowest:
            raise ValueError("a block needs a dtype")
        return U8.write(code)

    def read(self, source: Source) -> str:
        code = U8.read(source)
        if not self._lowest <= code < len(DTYPES):
            raise MalformedMessage(f"{code} is no dtype")
        return DTYPES[code]


class Extents(Codec[tuple[int, ...]]):
    """Sizes per dimension, behind the number of dimensions."""

    def __init__(self, *, low: int) -> None:
        self._size = Integer("Q", low=low, high=LARGEST)

    def write(self, value: tuple[int, ...]) -> bytes:
        return NUM_DIMENSIONS.write(len(value)) + b"".join(map(self._size.write, value))

    def read(self, source: Source) -> tuple[int, ...]:
        return tuple(self._size.read(source) for _ in range(NUM_DIMENSIONS.read(source)))


def _rank_problem(message: Hello) -> str | None:
    return None if message.rank < message.num_ranks else f"rank {message.rank} of {message.num_ranks} ranks"


def _field_problem(field: FieldSpec) -> str | None:
    if not field.name or math.prod(field.shape) > LARGEST_FIELD:
        return f"field {field.name!r} has no name, or more than 2^59 values"
    return None


def _block_problem(block: Block) -> str | None:
    if not len(block.shape) == len(block.offset) == len(block.count):
        return f"shape, offset and count of field {block.field!r} differ in their number of dimensions"
    extents = zip(block.shape, block.offset, block.count, strict=True)
    if any(offset + count > size for size, offset, count in extents):
        return f"the block of field {block.field!r} reaches out of the field"
    if not block.field or math.prod(block.shape) > LARGEST_FIELD:
        return f"field {block.field!r} has no name, or more than 2^59 values"
    return None


def _open_problem(message: Open) -> str | None:
    if message.rank >= message.num_ranks:
        return f"rank {message.rank} of {message.num_ranks} ranks"
    return _repetition(block.field for block in message.blocks)


def _welcome_problem(message: Welcome) -> str | None:
    if not message.endpoints or not all(message.endpoints):
        return "no server rank, or one without an address"
    if message.wait_s < 0:
        return f"nobody can wait {message.wait_s:g} s"
    return _repetition(field.name for field in message.fields)


def _time_steps_problem(steps: TimeSteps) -> str | None:
    last = steps.first + ((steps.num or 1) - 1) * steps.every
    return None if last <= LARGEST else "the last time step is above 2^63 - 1"


def _repetition(names: Iterable[str]) -> str | None:
    names = list(names)
    return None if len(set(names)) == len(names) else "a field occurs twice"


NUM_DIMENSIONS = Integer("B", low=0, high=MAX_DIMENSIONS)
POSITIVE = Integer("Q", low=1, high=LARGEST)
# The server keeps a bit for each client rank.
NUM_RANKS = Integer("I", low=1, high=MAX_CLIENT_RANKS)
CREDIT = Integer("I", low=1, high=2**32 - 1)

FIELD = Record(
    cls=FieldSpec,
    attributes={"name": TEXT, "shape": Extents(low=1), "dtype": DType(required=False), "optional": FLAG},
    problem=_field_problem,
)
TIME_STEPS = Record(
    cls=TimeSteps,
    attributes={"num": Maybe(POSITIVE), "first": LABEL, "every": POSITIVE},
    problem=_time_steps_problem,
)
BLOCK = Record(
    cls=Block,
    attributes={
        "field": TEXT,
        "dtype": DType(required=True),
        "shape": Extents(low=1),
        "offset": Extents(low=0),
        "count": Extents(low=1),
    },
    problem=_block_problem,
)

LAYOUTS: dict[int, Record[Any]] = {
    1: Record(
        cls=Hello,
        attributes={
            "study": TEXT,
            "simulation": Maybe(COUNT),
            "attempt": U32,
            "rank": U32,
            "num_ranks": NUM_RANKS,
            "parameters": Maybe(Named(REAL)),
        },
        problem=_rank_problem,
    ),
    2: Record(
        cls=Welcome,
        attributes={
            "study": TEXT,
            "simulation": COUNT,
            "attempt": U32,
            "epoch": U32,
            "endpoints": Many(Many(TEXT, limit=16), limit=2**16 - 1),
            "parameters": Named(REAL),
            "time_steps": TIME_STEPS,
            "fields": Many(FIELD, limit=MAX_FIELDS),
            "routing": Choice(Routing, U8),
            "window_bytes": COUNT,
            "if_server_away": Choice(Away, U8),
            "wait_s": REAL,
        },
        problem=_welcome_problem,
    ),
    3: Record(
        cls=Open,
        attributes={
            "study": TEXT,
            "simulation": COUNT,
            "attempt": U32,
            "epoch": U32,
            "rank": U32,
            "num_ranks": NUM_RANKS,
            "blocks": Many(BLOCK, limit=MAX_FIELDS),
        },
        problem=_open_problem,
    ),
    4: Record(cls=Opened, attributes={"epoch": U32, "credit": CREDIT, "known": BLOB}),
    6: Record(cls=End, attributes={"simulation": COUNT, "attempt": U32, "epoch": U32, "share": COUNT, "total": COUNT}),
    7: Record(cls=Ping, attributes={}),
    8: Record(cls=Ack, attributes={"received": COUNT, "durable": COUNT, "ended": FLAG, "stop": FLAG}),
    9: Record(cls=Invalidate, attributes={"study": TEXT, "simulation": COUNT, "attempt": U32, "reason": PROSE}),
    10: Record(cls=Invalidated, attributes={"simulation": COUNT}),
    11: Record(cls=Stop, attributes={"text": PROSE}),
    12: Record(cls=Refusal, attributes={"reason": Choice(Reason, U16), "text": PROSE, "sequence": Maybe(COUNT)}),
}
KINDS = {layout.cls: kind for kind, layout in LAYOUTS.items()}
