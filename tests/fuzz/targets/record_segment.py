"""A file of recorded samples: entries that are sound, or `DamagedRecord`; a torn end is left out."""

import numpy as np
from xxhash import xxh3_64_intdigest

from stream_server.errors import DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.dealing import last_pieces
from stream_server.server.replay.record_format import (
    CHECKSUM_BYTES,
    PREAMBLE_BYTES,
    EntryKind,
    EntryLayout,
    Segment,
    set_checksums,
)
from stream_server.server.replay.record_reader import RankRecord
from tests.fuzz import scratch
from tests.fuzz.target import Target

FOLDER = scratch.folder()
SEGMENT = Segment(incarnation=1, begin=0, rank=0)
FIELDS = (
    FieldSpec(name="u", shape=(2,), dtype="<f8"),
    FieldSpec(name="n", shape=(), dtype="<i4"),
    FieldSpec(name="mesh", shape=(3,), dtype="<f8", per="simulation"),
    FieldSpec(name="edges", shape=(9,), dtype="<i4", per="simulation", ragged=True),
)
LAYOUT = EntryLayout(FIELDS, 2)
MOST_ENTRIES = 100


def run(data: bytes) -> None:
    """Read the file, and one with the same description and entries whose checksums fit."""
    _read(data)
    end = data.find(b"}\n", PREAMBLE_BYTES)
    if end >= 0:
        text, entries = data[PREAMBLE_BYTES : end + 1], data[end + 2 :]
        _read(_preamble(text) + _sealed(entries))


def _read(data: bytes) -> None:
    (FOLDER / SEGMENT.name).write_bytes(data)
    try:
        record = RankRecord(FOLDER, 0)
    except DamagedRecord:
        return
    try:
        last: dict[int, int] = {}
        for heads in record.heads():
            assert len(heads) <= len(data)
            last |= last_pieces(heads)
        for number in range(min(len(record), MOST_ENTRIES)):
            entry = record.read(number)
            assert sum(array.nbytes for array in entry.fields.values()) <= len(data)
        for number in last.values():
            assert sum(array.nbytes for array in record.read_statics(number).values()) <= len(data)
    except DamagedRecord:
        pass
    finally:
        record.close()


def _preamble(text: bytes) -> bytes:
    magic = PREAMBLE[: PREAMBLE_BYTES - 3 * CHECKSUM_BYTES]
    start = magic + len(text).to_bytes(8, "little") + xxh3_64_intdigest(text).to_bytes(8, "little")
    return start + xxh3_64_intdigest(start).to_bytes(CHECKSUM_BYTES, "little") + text


def _sealed(data: bytes) -> bytes:
    size = LAYOUT.num_bytes
    whole = np.frombuffer(data[: len(data) // size * size], LAYOUT.dtype).copy()
    if len(whole):
        set_checksums(whole)
    return whole.tobytes() + data[len(whole) * size :]


def _entries() -> bytes:
    """The pieces of a mesh, and an entry of each other kind."""
    num_pieces = LAYOUT.num_pieces({"mesh": (3,), "edges": (5,)})
    pieces, others = [EntryKind.STATICS] * num_pieces, sorted(set(EntryKind) - {EntryKind.STATICS})
    entries = np.zeros(len(pieces) + len(others), LAYOUT.dtype)
    for number, kind in enumerate(pieces + others):
        step = 10 * number if kind is not EntryKind.STATICS else len(pieces) - 1 - number
        entries[number]["head"] = (0, number, 3, step, 3, kind)
        entries[number]["lengths"] = 5
    set_checksums(entries)
    return entries.tobytes()


PREAMBLE = SEGMENT.preamble(LAYOUT)
TARGET = Target(
    run=run,
    seeds=(PREAMBLE + _entries(), PREAMBLE + b"\n" + _entries(), PREAMBLE + _entries()[:-50], PREAMBLE[:-20]),
    max_bytes=2048,
)
