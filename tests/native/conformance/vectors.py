"""Conversations as text: what was said to a driver and what it answered, and all that it put on the wire.

Of JSON it is the values that count: they are written as the Python client writes them, whoever sent them.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream_server.messages import wire
from stream_server.messages.client import DTYPES, PROTOCOL_VERSION, Block, Data, Open
from tests.native.conformance.case import Case
from tests.native.conformance.recording import Recorded, by_place

FOLDER = Path(__file__).parents[2] / "vectors"
ROW_BYTES = 32
MAX_SHOWN_BYTES = 4096
COLUMN = 60
DATA_PARTS = (
    *(
        (8, "simulation"),
        (4, "attempt"),
        (4, "incarnation"),
        (8, "sequence"),
        (8, "index"),
        (8, "present"),
        (8, "offset"),
    ),
    *((4, "num_steps"), (2, "field"), (1, "flags"), (1, "zero"), (4, "checksum")),
)


def path(case: Case) -> Path:
    """The path of the vector of a case."""
    return FOLDER / f"{case.name}.txt"


def text(case: Case, played: Sequence[tuple[str, str | None]], recorded: Sequence[Recorded]) -> str:
    """The whole file."""
    return "\n".join([*_head(case), *_played(case, played), *_wire(recorded)]) + "\n"


def read(text: str) -> list[Recorded]:
    """The messages of a vector; of a payload that is not shown, as many zeros."""
    messages: list[Recorded] = []
    incarnation, place, frames = 0, "", []
    for line in text.splitlines():
        content = line.split("#")[0].strip()
        if match := re.fullmatch(r"\[incarnation (\d+), (.*)\]", content):
            incarnation, place = int(match[1]), match[2]
        elif line.startswith(("Hello", "Open", "Data", "End", "Invalidate")) and place:
            frames = []
            messages.append(Recorded(incarnation, place, ()))
        elif match := re.match(r"payload of (\d+) bytes(, sha256)?", content):
            frames.append(bytes(int(match[1])) if match[2] else b"")
        elif line.startswith("    {"):
            frames = [line.strip().encode()]
        elif line.startswith("    ") and place:
            frames = frames or [b""]
            frames[-1] += bytes.fromhex(content)
        if messages:
            messages[-1] = Recorded(messages[-1].incarnation, messages[-1].place, tuple(frames))
    return messages


def _head(case: Case) -> list[str]:
    fields = [
        f"{it.name} {list(it.shape)} {it.dtype or 'as sent'}{', optional' * it.optional}"
        f"{', once per simulation' * it.is_static}{', ragged' * it.ragged}"
        for it in case.fields
    ]
    return [f"# {case.about}", *(f"# field {it}" for it in fields), f"# server ranks: {case.num_ranks}", ""]


def _played(case: Case, played: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    for line, answer in played:
        yield f"> {line}"
        if answer is not None and answer != "staged":
            yield f"< {answer.split(':')[0] if case.own_words else answer}"


def _wire(recorded: Sequence[Recorded]) -> Iterator[str]:
    for (incarnation, place), messages in by_place(list(recorded)):
        yield f"\n[incarnation {incarnation}, {place}]"
        opened: Open | None = None
        for it in messages:
            message = wire.decode(it.frames[0])
            yield type(message).__name__
            if isinstance(message, Open):
                opened = message
            if isinstance(message, Data):
                assert opened is not None
                blocks = opened.static_blocks if message.static else opened.blocks
                yield from (_line(part, comment) for part, comment in _data(it.frames[0]))
                yield from _payload(message, it.frames[1:], blocks)
            else:
                yield f"    {bytes(wire.encode(message)[0]).decode()}"


def _line(part: bytes, comment: str) -> str:
    return f"    {part.hex(' '):<{COLUMN}} # {comment}"


def _data(header: bytes) -> Iterator[tuple[bytes, str]]:
    yield header[:8], f"version {PROTOCOL_VERSION}, kind 1"
    at = 8
    for size, name in DATA_PARTS:
        part = header[at : at + size]
        at += size
        number = int.from_bytes(part, "little")
        yield part, f"{name} {number:08x}" if name == "checksum" and number else f"{name} {number}"


def _payload(data: Data, payload: Sequence[bytes], blocks: Sequence[Block]) -> Iterator[str]:
    numbers = [i for i in range(64) if data.present >> i & 1] if data.field == 0xFFFF else [data.field]
    for number, frame in zip(numbers, payload, strict=True):
        block = blocks[number]
        what = f"# {block.field}, dtype {DTYPES.index(block.dtype)}, {list(block.count)}"
        if len(frame) > MAX_SHOWN_BYTES:
            yield f"payload of {len(frame)} bytes, sha256 {hashlib.sha256(frame).hexdigest()} {what}"
            continue
        yield f"payload of {len(frame)} bytes {what}"
        yield from (f"    {frame[at : at + ROW_BYTES].hex(' ')}" for at in range(0, len(frame), ROW_BYTES))
