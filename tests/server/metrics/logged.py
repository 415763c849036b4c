"""Ranks, writers and figures for the tests of what is logged."""

import io
import json
import struct
import zlib
from typing import Any

from stream_server.server.metrics.log_record import Record


class OneOf:
    """One rank of several, in one thread: rank 0 writes last and finds what the others left."""

    def __init__(self, rank: int, mailbox: list[Any]) -> None:
        self.rank = rank
        self._mailbox = mailbox

    def gather(self, value: Any) -> list[Any] | None:
        plain = json.loads(json.dumps(value))
        if self.rank:
            self._mailbox.append(plain)
            return None
        return [plain, *self._mailbox]


class Kept:
    """A writer that keeps its records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


class Figure:
    """A stand-in for Matplotlib's figure."""

    def savefig(self, file: io.BytesIO, *, format: str) -> None:
        assert format == "png"
        file.write(png(width=3, height=2))


def png(*, width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\xff" * 4 * width) * height))
    return b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b"")


def record(batch: int, **values: float) -> Record:
    """A log point with an update per batch and ten samples in each."""
    return Record(batch=batch, update=batch, sample=10 * batch, wall_s=batch / 10, values=values)
