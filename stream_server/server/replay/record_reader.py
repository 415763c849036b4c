"""Reads a record: a folder with the files of all ranks, entry by entry."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stream_server.config import StudyConfig
from stream_server.errors import DamagedRecord
from stream_server.server.replay.record_format import (
    FACTS_FILE,
    HEAD,
    Entries,
    EntryHead,
    EntryKind,
    EntryLayout,
    RecordFacts,
    Segment,
    is_sound,
)
from stream_server.storage.disk import by_own_links, names_in, ordinary, read_text
from stream_server.storage.typed import shortened

SUBFOLDER = "record"
BLOCK_BYTES = 2**20
# Of larger entries only the heads are read.
LARGEST_WHOLE_BYTES = 4096
KINDS = frozenset(EntryKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPart:
    """The part of a file that belongs to the record: its entries from `begin` to `stop`, of the last file all.

    `layout` is None and `study` "" when it has no entry. `torn_bytes` are those of a last entry that is not complete.
    """

    segment: Segment
    path: Path
    study: str
    layout: EntryLayout | None
    first_byte: int
    stop: int
    torn_bytes: int

    def offset(self, number: int) -> int:
        """The offset in the file at which an entry begins."""
        assert self.layout is not None
        return self.first_byte + (number - self.segment.begin) * self.layout.num_bytes


def ranks_in(folder: Path) -> list[int]:
    """The ranks that have files in a folder, if it is there."""
    return sorted({segment.rank for name in names_in(folder) if (segment := Segment.from_name(name))})


def segments_in(folder: Path, rank: int) -> list[Segment]:
    """The files of a rank, in the order of their incarnations."""
    segments = [segment for name in os.listdir(folder) if (segment := Segment.from_name(name))]
    return sorted((it for it in segments if it.rank == rank), key=lambda it: it.incarnation)


def parts_of_rank(folder: Path, rank: int) -> list[SegmentPart]:
    """The parts of files that make up the record of a rank, from its first entry to its last.

    Raises:
        DamagedRecord: an entry before the last one is missing, or a file is not what its name says.
    """
    mine = segments_in(folder, rank)
    found: list[SegmentPart] = []
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


def _part(folder: Path, segment: Segment, limit: int | None) -> SegmentPart:
    path = folder / segment.name
    try:
        size = path.stat().st_size
        preamble = segment.read_preamble(path)
    except OSError as error:
        raise DamagedRecord(f"{path} cannot be read: {error}. Put back a copy of it") from error
    if preamble is None:
        study, layout, first_byte, stop, torn_bytes = "", None, 0, segment.begin, size
    else:
        study, layout, first_byte = preamble
        num, torn_bytes = divmod(size - first_byte, layout.num_bytes)
        stop = segment.begin + (num if limit is None else min(num, limit - segment.begin))
    if limit is not None and stop < limit:
        raise DamagedRecord(
            f"{path}: expected the samples up to number {limit}, found those up to {stop}: the end of the file is "
            "lost. Put back a copy of it"
        )
    return SegmentPart(
        segment=segment,
        path=path,
        study=study,
        layout=layout,
        first_byte=first_byte,
        stop=stop,
        torn_bytes=torn_bytes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordEntry:
    """One entry. `fields` has the arrays of a sample that it was sent with, `parameters` is empty in a sample.

    `trajectory_ends`: behind these time steps those of the simulation are of another trajectory.
    """

    kind: EntryKind
    simulation: int
    time_step: int
    fields: dict[str, npt.NDArray[Any]]
    parameters: npt.NDArray[np.float64]
    trajectory_ends: Sequence[int] = ()


class RankRecord:
    """The entries of one rank, `len()` of them, by their numbers. Holds open files until `close`.

    `is_closed`: the record ends as it does when a study ends in order. `warnings` say what is not in it.

    Raises:
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._parts = [part for part in parts_of_rank(folder, rank) if part.layout is not None]
        self._files = [ordinary(part.path) for part in self._parts]
        self._num = self._parts[-1].stop if self._parts else 0
        self._latest = 0
        try:
            self.is_closed = self._num > 0 and self.read(self._num - 1).kind is EntryKind.END
            self._num -= self.is_closed
            self.warnings = list(self._absences(folder))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._num

    @property
    def studies(self) -> dict[str, str]:
        """The study of each of the files, by the name of the file."""
        return {part.segment.name: part.study for part in self._parts}

    @property
    def layouts(self) -> list[EntryLayout]:
        """The layouts of the entries, file by file."""
        return [part.layout for part in self._parts if part.layout is not None]

    def head(self, number: int) -> EntryHead:
        """The head of an entry, unchecked."""
        file, part = self._find(number)
        return EntryHead.unpack(self._read(file, part, number, HEAD.itemsize))

    def read(self, number: int) -> RecordEntry:
        """An entry as it was written.

        Raises:
            DamagedRecord: it is not.
        """
        head, entry, layout = self._read_entry(number)
        kind = EntryKind(head.kind)
        names = [field.name for field in layout.step_fields]
        is_of_parameters = kind is EntryKind.PARAMETERS
        present = [name for bit, name in enumerate(names) if head.present >> bit & 1 and not is_of_parameters]
        return RecordEntry(
            kind=kind,
            simulation=head.simulation,
            time_step=head.time_step,
            fields={name: _values(entry, name) for name in present},
            parameters=entry["parameters"] if is_of_parameters else np.empty(0),
            trajectory_ends=[head.time_step] if is_of_parameters and head.present else [],
        )

    def read_statics(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """The fields that are sent once, of the simulation of which the entry has the last piece.

        Raises:
            DamagedRecord: they are not as they were written.
        """
        last, entry, layout = self._read_entry(number)
        try:
            shapes = layout.static_shapes(entry["lengths"])
        except ValueError as error:
            raise _damaged(self._find(number)[1], number) from error
        pieces = []
        for following in reversed(range(layout.num_pieces(shapes))):
            piece = number - following
            if piece < 0:
                raise _damaged(self._find(number)[1], number)
            head, entry, _ = self._read_entry(piece)
            if (head.kind, head.simulation, head.time_step) != (EntryKind.STATICS, last.simulation, following):
                raise _damaged(self._find(piece)[1], piece)
            pieces.append(entry["piece"].tobytes())
        return layout.joined(pieces, shapes)

    def heads(self) -> Iterator[Entries]:
        """The heads of all entries in their order, many at a time, unchecked but for their numbers."""
        for part, file in zip(self._parts, self._files, strict=True):
            assert part.layout is not None
            for start, stop in _blocks(part.segment.begin, min(part.stop, self._num), part.layout.num_bytes):
                heads = self._read_heads(file, part, part.layout, start, stop)
                wrong = np.flatnonzero(heads["number"] != np.arange(start, start + len(heads)))
                if len(wrong) or len(heads) < stop - start:
                    raise _damaged(part, start + int(wrong[0]) if len(wrong) else start + len(heads))
                yield heads

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())

    def _read_entry(self, number: int) -> tuple[EntryHead, Any, EntryLayout]:
        file, part = self._find(number)
        assert part.layout is not None
        data = self._read(file, part, number, part.layout.num_bytes)
        head = EntryHead.unpack(data)
        if not is_sound(data, head) or head.number != number or head.kind not in KINDS:
            raise _damaged(part, number)
        return head, np.frombuffer(data, part.layout.dtype)[0], part.layout

    def _find(self, number: int) -> tuple[int, SegmentPart]:
        part = self._parts[self._latest]
        if not part.segment.begin <= number < part.stop:
            self._latest = next(i for i, part in enumerate(self._parts) if part.segment.begin <= number < part.stop)
            part = self._parts[self._latest]
        return self._files[self._latest], part

    def _read(self, file: int, part: SegmentPart, number: int, num_bytes: int) -> bytes:
        data = os.pread(file, num_bytes, part.offset(number))
        if len(data) < num_bytes:
            raise _damaged(part, number)
        return data

    def _read_heads(self, file: int, part: SegmentPart, layout: EntryLayout, start: int, stop: int) -> Entries:
        if layout.num_bytes <= LARGEST_WHOLE_BYTES:
            data = os.pread(file, (stop - start) * layout.num_bytes, part.offset(start))
            entries = np.frombuffer(data[: len(data) // layout.num_bytes * layout.num_bytes], layout.dtype)
            return entries["head"].copy()
        offsets = range(part.offset(start), part.offset(stop), layout.num_bytes)
        data = b"".join(os.pread(file, HEAD.itemsize, offset) for offset in offsets)
        return np.frombuffer(data[: len(data) // HEAD.itemsize * HEAD.itemsize], HEAD)

    def _absences(self, folder: Path) -> Iterator[str]:
        marker = folder / f"rank-{self.rank}.incomplete"
        if marker.exists():
            reason = shortened(read_text(marker, errors="replace", opener=by_own_links).strip())
            yield f"rank {self.rank} recorded only some of its samples: {reason}"
        elif not self.is_closed:
            yield (
                f"the record of rank {self.rank} has no end, as if its study had been killed: there are {self._num} "
                "entries"
            )
        if self._parts and self._parts[-1].torn_bytes:
            yield f"the last sample of {self._parts[-1].path} is not all there, and is left out"


def _values(entry: Any, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = entry["fields"][name]
    return values[: int(entry["lengths"][name])] if name in (entry["lengths"].dtype.names or ()) else values


def is_record(folder: Path) -> bool:
    """Whether there is a record in a folder, or in an output folder."""
    return (folder / FACTS_FILE).exists() or (folder / SUBFOLDER / FACTS_FILE).exists()


class Recording:
    """A record and the files of its ranks. A context manager, which holds the files open.

    `folder` is that of the record, or the output folder of the study that made it. `warnings` say what is not in it.

    Raises:
        ConfigError: there is no record that this version can read.
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SUBFOLDER if (folder / SUBFOLDER / FACTS_FILE).exists() else folder
        self.facts = RecordFacts.read(self.folder)
        with ExitStack() as stack:
            self.ranks: list[RankRecord] = []
            for rank in range(self.facts.ranks):
                self.ranks.append(RankRecord(self.folder, rank))
                stack.callback(self.ranks[-1].close)
                self._check_study(self.ranks[-1])
            self._stack = stack.pop_all()
        self.warnings = [warning for rank in self.ranks for warning in rank.warnings]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def check(self, config: StudyConfig, parameters: Sequence[str]) -> None:
        """Refuse a study that cannot be trained from this record; `parameters` are the names of its parameters.

        Raises:
            ConfigError: study.json differs from the record.
        """
        self.facts.check(config, parameters, where=str(self.folder))

    @property
    def latest(self) -> range:
        """The ranks of the last start of the study."""
        return range(self.facts.latest_ranks or self.facts.ranks)

    def simulations_at_once(self, config: StudyConfig) -> int:
        """How many simulations are gone through in turn where samples are windows."""
        return config.max_simulations_at_once

    def dtypes(self, config: StudyConfig) -> dict[str, npt.DTypeLike]:
        """The types in which a study keeps the fields: those of study.json, or else those that were recorded."""
        layouts = [layout for record in self.ranks for layout in record.layouts]
        return {
            name: np.dtype(spec.dtype) if spec.dtype else _common_dtype(name, layouts)
            for name, spec in config.study.fields.items()
        }

    def _check_study(self, record: RankRecord) -> None:
        for name, study in record.studies.items():
            if study != self.facts.identity:
                raise DamagedRecord(
                    f"{self.folder / name} is of another study than {FACTS_FILE} beside it. Put back copies of both"
                )


def _common_dtype(field: str, layouts: Sequence[EntryLayout]) -> npt.DTypeLike:
    recorded = {spec.dtype for layout in layouts for spec in layout.fields if spec.name == field}
    return np.result_type(*sorted(recorded)).newbyteorder("=") if recorded else np.dtype(np.float64)


def _blocks(start: int, stop: int, entry_bytes: int) -> Iterator[tuple[int, int]]:
    num = max(1, BLOCK_BYTES // max(HEAD.itemsize, min(entry_bytes, LARGEST_WHOLE_BYTES)))
    for first in range(start, stop, num):
        yield first, min(stop, first + num)


def _damaged(part: SegmentPart, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{part.path}: the entry {number} is not as it was written, or not there. Put back a copy of the file; without "
        "one, nothing from there on can be trained on"
    )
