"""The files of a record: each start of a study writes files of its own, and says in their names where they begin.

So a server that was left behind, and goes on writing into its own file, changes nothing: of every file only what comes
before the beginnings of the later ones is part of the record.
"""

import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from stream_server import disk
from stream_server.client_api.layouts import DTYPES
from stream_server.client_api.messages import FieldSpec
from stream_server.errors import DamagedRecord
from stream_server.failpoints import failpoint
from stream_server.launcher.typed import typed
from stream_server.server.record.layout import CHECKSUM_BYTES, Layout

FORMAT = 1
MAGIC = b"stream-record\n\0\1"

_NUMBERS = struct.Struct("<QQQ")
PREAMBLE_BYTES = len(MAGIC) + _NUMBERS.size
_NAME = re.compile(r"rank-(\d+)\.epoch-(\d+)\.from-(\d+)\.samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One file of one rank: what it wrote in one epoch, from its entry number `begin` on."""

    epoch: int
    begin: int
    rank: int

    @property
    def name(self) -> str:
        return f"rank-{self.rank}.epoch-{self.epoch}.from-{self.begin}.samples"

    def preamble(self, layout: Layout, study: str = "") -> bytes:
        """The first bytes of the file: what it is, of which study, and how its entries are laid out."""
        described = {
            "format": FORMAT,
            "study": study,
            **asdict(self),
            "num_parameters": layout.num_parameters,
            "fields": [asdict(field) for field in layout.fields],
        }
        text = json.dumps(described).encode()
        start = MAGIC + _NUMBERS.pack(len(text), xxh3_64_intdigest(text), 0)[:-CHECKSUM_BYTES]
        return start + xxh3_64_intdigest(start).to_bytes(CHECKSUM_BYTES, "little") + text


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The part of a file that belongs to the record: its entries from `begin` to `stop`, of the last file all.

    `layout` is None and `study` "" when it has no entry. `torn_bytes` are those of a last entry that is not all there.
    """

    segment: Segment
    path: Path
    study: str
    layout: Layout | None
    first_byte: int
    stop: int
    torn_bytes: int

    def place(self, number: int) -> int:
        """Where in the file an entry begins."""
        assert self.layout is not None
        return self.first_byte + (number - self.segment.begin) * self.layout.num_bytes


def segments(folder: Path, rank: int) -> list[Segment]:
    """The files of a rank in the order in which they were begun."""
    found = [match for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
    numbers = [tuple(map(int, match.groups())) for match in found]
    mine = [Segment(epoch=epoch, begin=begin, rank=owner) for owner, epoch, begin in numbers if owner == rank]
    return sorted(mine, key=lambda segment: segment.epoch)


def parts(folder: Path, rank: int) -> list[Part]:
    """What the record of a rank consists of, from its first entry to its last.

    Raises:
        DamagedRecord: an entry before the last one is missing, or a file is not what its name says.
    """
    found: list[Part] = []
    mine = segments(folder, rank)
    for number, segment in enumerate(mine):
        limit = min((later.begin for later in mine[number + 1 :]), default=None)
        if limit is None or limit > segment.begin:
            found.append(_part(folder, segment, limit))
    begins = [part.segment.begin for part in found]
    if begins != [0, *(part.stop for part in found[:-1])]:
        expected = "a file from 0 on and each next one from where the one before ends"
        have = ", ".join(part.segment.name for part in found) or "none"
        raise DamagedRecord(
            f"{folder}: of rank {rank}, {expected} were expected, but found {have}: a file is missing. Put it back"
        )
    return found


def begin_segment(folder: Path, segment: Segment) -> Path:
    """Make the file of a new epoch, which ends what earlier ones contribute at `segment.begin`, for good.

    Of ranks that a study no longer has, this is all that happens.

    Raises:
        DamagedRecord: the record does not reach as far as `segment.begin`.
    """
    path = folder / segment.name
    disk.close(disk.create(path))
    disk.sync_folder(folder)
    for part in parts(folder, segment.rank):
        if part.layout is not None and part.segment != segment and part.path.stat().st_size > part.place(part.stop):
            disk.truncate(part.path, part.place(part.stop))
            failpoint("record.truncated")
    return path


def _part(folder: Path, segment: Segment, limit: int | None) -> Part:
    path = folder / segment.name
    try:
        size = path.stat().st_size
        read = _read_preamble(path, segment)
    except OSError as error:
        raise DamagedRecord(f"{path} cannot be read: {error}. Put back a copy of it") from error
    if read is None:
        study, layout, first_byte, stop, torn_bytes = "", None, 0, segment.begin, size
    else:
        study, layout, first_byte = read
        num, torn_bytes = divmod(size - first_byte, layout.num_bytes)
        stop = segment.begin + (num if limit is None else min(num, limit - segment.begin))
    part = Part(
        segment=segment,
        path=path,
        study=study,
        layout=layout,
        first_byte=first_byte,
        stop=stop,
        torn_bytes=torn_bytes,
    )
    if limit is not None and part.stop < limit:
        raise DamagedRecord(
            f"{path}: expected the samples up to number {limit}, found those up to {part.stop}: the end of the file is "
            "lost. Put back a copy of it"
        )
    return part


def _read_preamble(path: Path, segment: Segment) -> tuple[str, Layout, int] | None:
    """The study, the layout and where the entries begin; None when that is not all there, as after a crash."""
    with open(path, "rb", opener=disk.ordinary) as file:
        preamble = file.read(PREAMBLE_BYTES)
        if not (preamble.startswith(MAGIC) or MAGIC.startswith(preamble)):
            raise DamagedRecord(f"{path} is no record of samples of format {FORMAT}: expected {MAGIC!r} in front")
        if len(preamble) < PREAMBLE_BYTES:
            return None
        num_bytes, checksum, checksum_before = _NUMBERS.unpack(preamble[len(MAGIC) :])
        if checksum_before != xxh3_64_intdigest(preamble[:-CHECKSUM_BYTES]):
            raise _undescribed(path)
        if num_bytes > path.stat().st_size - PREAMBLE_BYTES:
            return None
        text = file.read(num_bytes)
    if checksum != xxh3_64_intdigest(text):
        raise _undescribed(path)
    try:
        described = json.loads(text)
        written = typed(Segment, {name: described[name] for name in asdict(segment)})
        study = str(described["study"])
        fields = field_specs(described["fields"])
        if not all(field.dtype in DTYPES for field in fields):
            raise ValueError("a field is of no type")
        layout = Layout(fields, described["num_parameters"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise _undescribed(path) from error
    if written != segment:
        raise DamagedRecord(f"{path} was written as {written.name}. Give it its name again")
    return study, layout, PREAMBLE_BYTES + num_bytes


def field_specs(plain: Sequence[dict[str, Any]]) -> tuple[FieldSpec, ...]:
    """Fields out of JSON.

    Raises:
        KeyError, TypeError: they are none.
    """
    return tuple(typed(FieldSpec, {**field, "shape": tuple(field["shape"])}) for field in plain)


def _undescribed(path: Path) -> DamagedRecord:
    return DamagedRecord(f"{path}: the description of its samples is damaged. Put back a copy of the file")
