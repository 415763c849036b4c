"""Messages as frames and back: protocol version 4, as in docs/reference/protocol.md. No sockets, no clock.

`Data` and `Ack`, which come a hundred thousand times a second, are packed; `Data` has payload frames behind its header.
All others are one frame of JSON. The decoder is total: any bytes give a message or `MalformedMessage`, in time and
memory linear in their number.

Why: docs/decisions/0010-json-and-packed-messages.md
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stream_server.errors import MalformedMessage, WrongProtocol
from stream_server.messages import codec
from stream_server.messages.client import (
    ALL_FIELDS,
    LARGEST,
    MAX_FIELDS,
    MAX_PART_BYTES,
    PROTOCOL_VERSION,
    Ack,
    Block,
    Control,
    Data,
    Invalidate,
    Message,
    Refusal,
    Stop,
)

Frame = bytes | memoryview

MAGIC = b"STRM"
PREFIX = struct.Struct("<4sHH")
DATA = struct.Struct("<4sHHQIIQQQQIHBBI")
ACK = struct.Struct("<4sHHQQB")
DATA_KIND, ACK_KIND = 1, 2
LAST, CHECKED, STATIC, IN_SEGMENT = 1, 2, 4, 8
OFFSET = struct.Struct("<Q")
ENDED, STOP = 1, 2
MAX_CONTROL_BYTES = 4 * 1024 * 1024
MAX_PROSE_BYTES = 4096


class _Envelope(Struct):
    """The part of a message that tells its version."""

    protocol: Any


_envelope: Callable[[Frame], _Envelope] = codec.decoder(_Envelope)
_control: Callable[[Frame], Control] = codec.decoder(Control)
# Texts for people, which are cut.
_PROSE: dict[type[Any], str] = {Invalidate: "reason", Stop: "text", Refusal: "text"}


def block_bytes(block: Block) -> int:
    """Bytes of one step's block."""
    return math.prod(block.count) * int(block.dtype[2:])


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
    return [_encode_ack(message) if isinstance(message, Ack) else _encode_control(message)]


def decode(header: bytes | memoryview) -> Message:
    """The message of a header frame.

    Raises:
        WrongProtocol: a message of another version of the protocol.
        MalformedMessage: no message at all.
    """
    if header[: len(MAGIC)] != MAGIC:
        return _decode_control(header)
    if len(header) < PREFIX.size:
        raise MalformedMessage(f"{len(header)} bytes are too few for a message")
    _, version, kind = PREFIX.unpack_from(header)
    _check_version(version)
    if kind == DATA_KIND:
        return _decode_data(header)
    if kind == ACK_KIND:
        return _decode_ack(header)
    raise MalformedMessage(f"{kind} is no kind of message")


def _check_version(version: Any) -> None:
    if version != PROTOCOL_VERSION or type(version) is not int:
        raise WrongProtocol(f"the message is of protocol version {version}, but this is version {PROTOCOL_VERSION}")


def _encode_control(message: Control) -> bytes:
    if name := _PROSE.get(type(message)):
        prose: Any = {name: _cut(getattr(message, name))}
        message = replace(message, **prose)
    frame = codec.encode(message)
    try:
        _decode_control(frame)
    except MalformedMessage as error:
        raise ValueError(str(error)) from error
    return frame


def _decode_control(frame: bytes | memoryview) -> Control:
    if len(frame) > MAX_CONTROL_BYTES:
        raise MalformedMessage(f"{len(frame)} bytes in one message, more than {MAX_CONTROL_BYTES}")
    _check_version(_envelope(frame).protocol)
    return _control(frame)


def _cut(prose: str) -> str:
    return prose.replace("\0", "?").encode(errors="replace")[:MAX_PROSE_BYTES].decode(errors="ignore")


def _encode_ack(ack: Ack) -> bytes:
    if not 0 <= ack.durable <= LARGEST or not 0 <= ack.received <= LARGEST:
        raise ValueError(f"{ack}: a mark is not from 0 to 2^63 - 1")
    flags = ENDED * ack.ended | STOP * ack.stop
    return ACK.pack(MAGIC, PROTOCOL_VERSION, ACK_KIND, ack.received, ack.durable, flags)


def _decode_ack(header: bytes | memoryview) -> Ack:
    if len(header) != ACK.size:
        raise MalformedMessage(f"an Ack has {ACK.size} bytes, not {len(header)}")
    _, _, _, received, durable, flags = ACK.unpack(header)
    if (received | durable) > LARGEST or flags & ~(ENDED | STOP):
        raise MalformedMessage(f"a mark of {received} and {durable} is above 2^63 - 1, or a flag of {flags} is unknown")
    return Ack(received=received, durable=durable, ended=bool(flags & ENDED), stop=bool(flags & STOP))


def _frame(payload: Frame | np.ndarray) -> Frame:
    return payload.data if isinstance(payload, np.ndarray) else payload


def _encode_data(data: Data) -> bytes:
    if problem := _data_problem(data):
        raise ValueError(problem)
    flags = (
        LAST * data.last | CHECKED * (data.checksum is not None) | STATIC * data.static | IN_SEGMENT * data.in_segment
    )
    try:
        return DATA.pack(
            MAGIC,
            PROTOCOL_VERSION,
            DATA_KIND,
            data.simulation,
            data.attempt,
            data.incarnation,
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
    (
        _,
        _,
        _,
        simulation,
        attempt,
        incarnation,
        sequence,
        index,
        present,
        offset,
        num_steps,
        field,
        flags,
        unused,
        crc,
    ) = DATA.unpack(header)
    if flags & ~(LAST | CHECKED | STATIC | IN_SEGMENT) or unused or (crc and not flags & CHECKED):
        raise MalformedMessage(f"flags {flags}, unused byte {unused} and checksum {crc} do not go together")
    data = Data(
        simulation=simulation,
        attempt=attempt,
        incarnation=incarnation,
        sequence=sequence,
        index=index,
        num_steps=num_steps,
        present=present,
        field=field,
        offset=offset,
        last=bool(flags & LAST),
        static=bool(flags & STATIC),
        in_segment=bool(flags & IN_SEGMENT),
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
    if data.static and (data.field == ALL_FIELDS or data.index):
        return "a field that is sent once per simulation comes block by block, with the index 0"
    if data.in_segment and (data.field != ALL_FIELDS or data.checksum is not None):
        return "in a segment are whole steps, without a checksum"
    if data.field == ALL_FIELDS:
        return None if data.last and data.offset == 0 else "a whole step has offset 0 and is the last of itself"
    if data.field >= MAX_FIELDS or not data.present >> data.field & 1:
        return f"block {data.field} is not among those present ({data.present:#x})"
    if data.num_steps != 1 or data.offset % MAX_PART_BYTES:
        return f"a part belongs to one step and begins at a multiple of {MAX_PART_BYTES} bytes"
    return None
