"""The files of a record: for each rank and each start of the study a description, and blocks of entries behind it.

A block holds what was written at once: its head, the heads of its entries, and their values, of each entry as many
bytes as it has. An entry is a sample, the parameters or the static fields of a simulation, or an event. The first bytes
of a block tell all about its entries, and the values of one are read without those of the others.

The name of a file says at which entry it begins. So a server that was left behind, and goes on writing into its own
file, changes nothing: of every file only what comes before the beginnings of the later ones is part of the record.
"""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stream_server.errors import DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.storage import disk
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.typed import from_json

FORMAT = 2
CHECKSUM_BYTES = 8
MOST_ENTRIES = 1024
"""Of a block."""


Heads = npt.NDArray[Any]
"""Heads of entries, of the type `HEAD`."""

HEAD = np.dtype(
    [
        ("kind", "<u8"),
        ("simulation", "<i8"),
        ("time_step", "<i8"),
        ("present", "<u8"),
        ("num_bytes", "<u8"),
        ("checksum", "<u8"),
    ]
)

_BLOCK_HEAD = struct.Struct("<QQQQQ")
BLOCK_HEAD_BYTES = _BLOCK_HEAD.size
_NAME = re.compile(r"rank-(\d+)\.incarnation-(\d+)\.from-(\d+)\.samples")


class EntryKind(IntEnum):
    """The kinds of entries: a sample, for training or held out, what samples share, or an event of the study."""

    SAMPLE = 0
    HELD_OUT = 1
    PARAMETERS = 2
    FINISHED = 3
    WITHDRAWN = 4
    END = 5
    STATICS = 6
    TRAJECTORY_END = 7


SAMPLES = (EntryKind.SAMPLE, EntryKind.HELD_OUT)


class EntryHead(NamedTuple):
    """Head of an entry in its block, as in `HEAD`: its fields in `present`, and the size and checksum of its values.

    Bit i of `present` stands for the i-th step field; of an entry of kind `STATICS`, for the i-th static field.
    `time_step` is the label of a sample, or, of the end of a trajectory, that of its last step.
    """

    kind: int
    simulation: int
    time_step: int
    present: int
    num_bytes: int
    checksum: int


class BlockHead(NamedTuple):
    """The first bytes of a block: the number of its first entry, and how many entries and bytes of values it has.

    `checksum` is of the other numbers here, `heads_checksum` of the heads of the entries, which follow.
    """

    checksum: int
    number: int
    num_entries: int
    num_bytes: int
    heads_checksum: int

    @classmethod
    def unpack(cls, data: bytes) -> "BlockHead | None":
        """The head that begins with these bytes; None if they are not those that were written."""
        head = cls(*_BLOCK_HEAD.unpack_from(data))
        return head if head.checksum == xxh3_64_intdigest(data[CHECKSUM_BYTES:BLOCK_HEAD_BYTES]) else None

    @property
    def values_begin(self) -> int:
        """Offset of the values in the block."""
        return BLOCK_HEAD_BYTES + self.num_entries * HEAD.itemsize


def pack_heads(number: int, heads: Heads, values: memoryview) -> bytes:
    """The bytes of a block that come before its values; sets the checksums in `heads`.

    `number` is that of the first entry, `values` has the bytes of all entries one after the other.
    """
    stops = np.cumsum(heads["num_bytes"]).tolist()
    heads["checksum"] = [xxh3_64_intdigest(values[start:stop]) for start, stop in pairwise([0, *stops])]
    data = heads.tobytes()
    numbers = _BLOCK_HEAD.pack(0, number, len(heads), len(values), xxh3_64_intdigest(data))[CHECKSUM_BYTES:]
    return xxh3_64_intdigest(numbers).to_bytes(CHECKSUM_BYTES, "little") + numbers + data


def pack_fields(fields: Sequence[FieldSpec], values: Mapping[str, npt.NDArray[Any]]) -> tuple[int, bytes]:
    """The bits of the fields that are there, and their bytes: first the lengths of ragged ones, 8 bytes each."""
    present, lengths, arrays = 0, [], []
    for bit, field in enumerate(fields):
        if field.name in values:
            present |= 1 << bit
            array = np.ascontiguousarray(values[field.name], field.dtype)
            arrays.append(array.data)
            if field.ragged:
                lengths.append(len(array))
    return present, b"".join([np.array(lengths, "<u8").data, *arrays])


def most_bytes(fields: Sequence[FieldSpec]) -> int:
    """The most bytes that `pack_fields` makes of these fields."""
    return sum(8 * field.ragged + math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in fields)


def unpack_fields(fields: Sequence[FieldSpec], present: int, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The fields of which `pack_fields` made this.

    Raises:
        ValueError: it made something else.
    """
    there = [field for bit, field in enumerate(fields) if present >> bit & 1]
    num_ragged = sum(field.ragged for field in there)
    lengths = iter(np.frombuffer(data, "<u8", num_ragged).tolist())
    start, found = 8 * num_ragged, {}
    for field in there:
        shape = (next(lengths), *field.shape[1:]) if field.ragged else field.shape
        if field.ragged and shape[0] > field.shape[0]:
            raise ValueError(f"the field {field.name} has {shape[0]} rows, and may have {field.shape[0]}")
        values = np.frombuffer(data, field.dtype, math.prod(shape), start)
        found[field.name] = values.reshape(shape)
        start += values.nbytes
    if start != len(data) or present >> len(fields):
        raise ValueError(f"{len(data)} bytes are not those of the fields {', '.join(found)}")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One file of one rank: what it wrote in one incarnation, from its entry number `begin` on."""

    incarnation: int
    begin: int
    rank: int

    @property
    def name(self) -> str:
        return f"rank-{self.rank}.incarnation-{self.incarnation}.from-{self.begin}.samples"

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """The segment that a file of this name holds; None if it is another file."""
        if not (match := _NAME.fullmatch(name)):
            return None
        rank, incarnation, begin = map(int, match.groups())
        return cls(incarnation=incarnation, begin=begin, rank=rank)

    def description(self, fields: Sequence[FieldSpec], study: str = "") -> bytes:
        """The first line of the file: what it is, of which study, and the fields in the order of their bits."""
        described = msgspec.to_builtins(tuple(fields))
        return checksummed_json({"format": FORMAT, "study": study, **asdict(self), "fields": described}, indent=None)

    def read_description(self, file: IO[bytes], path: Path) -> tuple[str, tuple[FieldSpec, ...]] | None:
        """The study and the fields; None if the line is not complete, as after a crash. `file` is behind it then.

        Raises:
            DamagedRecord: the file is not what was written as this segment.
        """
        line = file.readline(disk.MAX_TEXT_BYTES)
        if not line.endswith(b"\n") and line.isascii() and line.decode().isprintable():
            return None
        try:
            described = parse_checksummed_json(line)
            if described["format"] != FORMAT:
                raise ValueError(f"format {FORMAT} was expected")
            written = from_json(Segment, {name: described[name] for name in asdict(self)})
            study, fields = str(described["study"]), from_json(tuple[FieldSpec, ...], described["fields"])
            if len({field.name for field in fields if field.dtype}) < len(fields):
                raise ValueError("a field has no type, or the name of another one")
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, MemoryError) as error:
            raise DamagedRecord(
                f"{path} is no record of samples of format {FORMAT}, or the description in its first line is damaged. "
                "Put back a copy of the file"
            ) from error
        if written != self:
            raise DamagedRecord(f"{path} was written as {written.name}. Give it its name again")
        return study, fields
