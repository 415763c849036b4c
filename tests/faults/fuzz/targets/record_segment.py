"""A file of recorded samples: entries that are sound, or `DamagedRecord`; a torn end is left out."""

import numpy as np

from stream_server.errors import DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import (
    BLOCK_HEAD_BYTES,
    HEAD,
    BlockHead,
    EntryKind,
    Segment,
    pack_fields,
    pack_heads,
)
from stream_server.server.replay.record_reader import RankRecord
from tests.faults.fuzz import scratch
from tests.faults.fuzz.sealing import resealed
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
SEGMENT = Segment(incarnation=1, begin=0, rank=0)
STEP_FIELDS = (
    FieldSpec(name="u", shape=(2,), dtype="<f8"),
    FieldSpec(name="n", shape=(), dtype="<i4"),
    FieldSpec(name="points", shape=(4, 2), dtype="<f4", ragged=True),
)
STATIC_FIELDS = (
    FieldSpec(name="mesh", shape=(3,), dtype="<f8", per="simulation"),
    FieldSpec(name="edges", shape=(9,), dtype="<i4", per="simulation", ragged=True),
)
MOST_ENTRIES = 100


def run(data: bytes) -> None:
    """Read the file, and one of the same content whose checksums fit."""
    _read(data)
    end = data.find(b"\n") + 1
    if end:
        _read(resealed(data[:end], indent=None) + _sealed(data[end:]))


def _read(data: bytes) -> None:
    (FOLDER / SEGMENT.name).write_bytes(data)
    try:
        record = RankRecord(FOLDER, 0)
    except DamagedRecord:
        return
    try:
        for _, heads in record.heads():
            assert heads.nbytes <= len(data)
        for number in range(min(len(record), MOST_ENTRIES)):
            entry = record.read(number)
            assert sum(array.nbytes for array in (*entry.fields.values(), entry.parameters)) <= len(data)
    except DamagedRecord:
        pass
    finally:
        record.close()


def _sealed(data: bytes) -> bytes:
    """The same blocks, as far as they are complete, with checksums that fit."""
    sealed, number = b"", 0
    while len(data) >= BLOCK_HEAD_BYTES:
        head = BlockHead(*np.frombuffer(data, "<u8", BLOCK_HEAD_BYTES // 8).tolist())
        end = head.values_begin + head.num_bytes
        heads = np.frombuffer(data[BLOCK_HEAD_BYTES : head.values_begin], "u1")
        if len(data) < end or len(heads) % HEAD.itemsize:
            break
        values = data[head.values_begin : end]
        sealed += pack_heads(number, heads.view(HEAD).copy(), memoryview(values)) + values
        number += head.num_entries
        data = data[end:]
    return sealed + data


def _blocks() -> bytes:
    """An entry of each kind, in two blocks."""
    sample = pack_fields(STEP_FIELDS, {"u": np.ones(2), "n": np.array(3), "points": np.ones((3, 2))})
    shared = pack_fields(STATIC_FIELDS, {"mesh": np.ones(3), "edges": np.arange(5)})
    of_kind = {
        EntryKind.PARAMETERS: (0, np.ones(2).tobytes()),
        EntryKind.STATICS: shared,
        EntryKind.SAMPLE: sample,
        EntryKind.HELD_OUT: sample,
    }
    kinds = [
        *of_kind,
        *(kind for kind in EntryKind if kind not in of_kind and kind is not EntryKind.END),
        EntryKind.END,
    ]
    data = b""
    for number, some in ((0, kinds[:3]), (3, kinds[3:])):
        found = [of_kind.get(kind, (0, b"")) for kind in some]
        entries = zip(some, found, strict=True)
        heads = np.array([(kind, 3, 0, present, len(values), 0) for kind, (present, values) in entries], HEAD)
        values = b"".join(values for _, values in found)
        data += pack_heads(number, heads, memoryview(values)) + values
    return data


DESCRIPTION = SEGMENT.description([*STEP_FIELDS, *STATIC_FIELDS])
TARGET = Target(
    run=run,
    seeds=(DESCRIPTION + _blocks(), DESCRIPTION + _blocks()[:-50], DESCRIPTION[:-20], DESCRIPTION),
    max_bytes=4096,
)
