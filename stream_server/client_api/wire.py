"""Messages as bytes and back: protocol version 1, byte by byte in docs/protocol.md. No sockets, no clock.

A message is one header frame; `Data` has payload frames behind it. The decoder is total: any bytes give a
message or `MalformedMessage`, in time and memory linear in their number.
"""

import math
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from stream_server.client_api.layouts import KINDS, LARGEST, LAYOUTS
from stream_server.client_api.messages import (
    ALL_FIELDS,
    MAX_FIELDS,
    MAX_PART_BYTES,
    PROTOCOL_VERSION,
    Block,
    Data,
    Message,
)
from stream_server.client_api.packing import Source
from stream_server.errors import MalformedMessage, WrongProtocol

Frame = bytes | memoryview

MAGIC = b"STRM"
PREFIX = struct.Struct("<4sHH")
DATA = struct.Struct("<4sHHQIIQQQQIHBBI")
DATA_KIND = 5
LAST, CHECKED = 1, 2


def block_bytes(block: Block) -> int:
    """Bytes of one step's block."""
    return math.prod(block.count) * int(block.dtype[2:])


def payload_sizes(data: Data, blocks: Sequence[Block]) -> tuple[int, ...]:
    """Bytes that each payload frame of `data` must have, for a client rank that opened with `blocks`.

    Raises:
        MalformedMessage: `data` names a block that is not there, or more bytes than one message may carry.
    """
    if data.present >> len(blocks):
        raise MalformedMessage(f"present is {data.present:#x}, but only {len(blocks)} blocks are open")
    if data.field != ALL_FIELDS:
        left = block_bytes(blocks[data.field]) - data.offset
        if left <= 0:
            raise MalformedMessage(f"byte {data.offset} is outside of block {data.field}")
        return (min(left, MAX_PART_BYTES),)
    sizes = tuple(data.num_steps * block_bytes(block) for i, block in enumerate(blocks) if data.present >> i & 1)
    if sum(sizes) > MAX_PART_BYTES:
        raise MalformedMessage(f"{sum(sizes)} bytes in one message, more than {MAX_PART_BYTES}")
    return sizes


def checksum(payload: Iterable[Frame | np.ndarray]) -> int:
    """CRC-32 of the payload frames, one after the other."""
    crc = 0
    for frame in payload:
        crc = zlib.crc32(_frame(frame), crc)
    return crc


def encode(message: Message, payload: Sequence[Frame | np.ndarray] = ()) -> list[Frame]:
    """The frames of a message: its header, and for `Data` the payload.

    Raises:
        ValueError: the message breaks a bound of the protocol.
    """
    if isinstance(message, Data):
        return [_encode_data(message), *map(_frame, payload)]
    assert not payload, "only Data has a payload"
    kind = KINDS[type(message)]
    return [PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind) + LAYOUTS[kind].write(message)]


def decode(header: bytes | memoryview) -> Message:
    """The message of a header frame.

    Raises:
        WrongProtocol: a message of another version of the protocol.
        MalformedMessage: no message at all.
    """
    if len(header) < PREFIX.size:
        raise MalformedMessage(f"{len(header)} bytes are too few for a message")
    magic, version, kind = PREFIX.unpack_from(header)
    if magic != MAGIC:
        raise MalformedMessage("the bytes do not begin as a message")
    if version != PROTOCOL_VERSION:
        raise WrongProtocol(f"the message is of protocol version {version}, but this is version {PROTOCOL_VERSION}")
    if kind == DATA_KIND:
        return _decode_data(header)
    layout = LAYOUTS.get(kind)
    if layout is None:
        raise MalformedMessage(f"{kind} is no kind of message")
    source = Source(header)
    source.take(PREFIX.size)
    message: Message = layout.read(source)
    source.finish()
    return message


def _frame(payload: Frame | np.ndarray) -> Frame:
    return payload.data if isinstance(payload, np.ndarray) else payload


def _encode_data(data: Data) -> bytes:
    if problem := _data_problem(data):
        raise ValueError(problem)
    flags = LAST * data.last | CHECKED * (data.checksum is not None)
    try:
        return DATA.pack(
            MAGIC,
            PROTOCOL_VERSION,
            DATA_KIND,
            data.simulation,
            data.attempt,
            data.epoch,
            data.sequence,
            data.index,
            data.present,
            data.offset,
            data.num_steps,
            data.field,
            flags,
            0,
            data.checksum or 0,
        )
    except struct.error as error:
        raise ValueError(f"{data}: {error}") from error


def _decode_data(header: bytes | memoryview) -> Data:
    if len(header) != DATA.size:
        raise MalformedMessage(f"a Data header has {DATA.size} bytes, not {len(header)}")
    (_, _, _, simulation, attempt, epoch, sequence, index, present, offset, num_steps, field, flags, unused, crc) = (
        DATA.unpack(header)
    )
    if flags & ~(LAST | CHECKED) or unused or (crc and not flags & CHECKED):
        raise MalformedMessage(f"flags {flags}, unused byte {unused} and checksum {crc} do not go together")
    data = Data(
        simulation=simulation,
        attempt=attempt,
        epoch=epoch,
        sequence=sequence,
        index=index,
        num_steps=num_steps,
        present=present,
        field=field,
        offset=offset,
        last=bool(flags & LAST),
        checksum=crc if flags & CHECKED else None,
    )
    if problem := _data_problem(data):
        raise MalformedMessage(problem)
    return data


def _data_problem(data: Data) -> str | None:
    if data.num_steps < 1 or data.present < 1:
        return "a Data message carries at least one field of one step"
    if (data.simulation | data.sequence | data.index | data.offset) > LARGEST:
        return "a number is above 2^63 - 1"
    if data.field == ALL_FIELDS:
        return None if data.last and data.offset == 0 else "a whole step has offset 0 and is the last of itself"
    if data.field >= MAX_FIELDS or not data.present >> data.field & 1:
        return f"block {data.field} is not among those present ({data.present:#x})"
    if data.num_steps != 1 or data.offset % MAX_PART_BYTES:
        return f"a part belongs to one step and begins at a multiple of {MAX_PART_BYTES} bytes"
    return None
