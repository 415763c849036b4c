"""Reads a record: a folder with the files of all ranks, entry by entry."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stream_server.config import StudyConfig
from stream_server.errors import DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import (
    BLOCK_HEAD_BYTES,
    HEAD,
    MOST_ENTRIES,
    SAMPLES,
    BlockHead,
    EntryHead,
    EntryKind,
    Heads,
    Segment,
    most_bytes,
    unpack_fields,
)
from stream_server.server.replay.recorded_study import STUDY_FILE, RecordedStudy
from stream_server.storage.disk import by_own_links, names_in, open_regular, read_text
from stream_server.storage.typed import shortened

SUBFOLDER = "record"
# Of so many blocks the heads of the entries are kept, also while a replay goes to and fro in a file.
MOST_BLOCKS = 4
KINDS = frozenset(EntryKind)
# No message has more parameters.
MOST_PARAMETERS_BYTES = 8 * 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPart:
    """The part of a file that belongs to the record: blocks from its first entry on, of the last file all.

    `begins` has the number of the first entry of each block, and `offsets` the byte at which it begins; the last of
    both is where the part ends. `fields` is None and `study` "" when nothing is there. `is_torn`: behind the part are
    bytes of a block that is not complete.
    """

    segment: Segment
    path: Path
    study: str
    fields: tuple[FieldSpec, ...] | None
    begins: Sequence[int]
    offsets: Sequence[int]
    is_torn: bool

    @property
    def stop(self) -> int:
        """The number behind that of the last entry."""
        return self.begins[-1]

    @property
    def end(self) -> int:
        """The bytes of the file that belong to the record."""
        return self.offsets[-1]


def segments_in(folder: Path) -> list[Segment]:
    """The files of all ranks in a folder, if it is there, in the order of their incarnations."""
    found = [segment for name in names_in(folder) if (segment := Segment.from_name(name))]
    return sorted(found, key=lambda it: it.incarnation)


def parts_of_rank(folder: Path, rank: int) -> list[SegmentPart]:
    """The parts of files that make up the record of a rank, from its first entry to its last.

    Raises:
        DamagedRecord: an entry before the last one is missing, or a file is not what its name says.
    """
    mine = [segment for segment in segments_in(folder) if segment.rank == rank]
    found: list[SegmentPart] = []
    for number, segment in enumerate(mine):
        limit = min((later.begin for later in mine[number + 1 :]), default=None)
        if limit is None or limit > segment.begin:
            found.append(_part(folder / segment.name, segment, limit))
    begins = [part.segment.begin for part in found]
    if begins != [0, *(part.stop for part in found[:-1])]:
        expected = "a file from 0 on and each next one from where the one before ends"
        have = ", ".join(part.segment.name for part in found) or "none"
        raise DamagedRecord(
            f"{folder}: of rank {rank}, {expected} were expected, but found {have}: a file is missing. Put it back"
        )
    return found


def _part(path: Path, segment: Segment, limit: int | None) -> SegmentPart:
    """The part of a file up to the entry `limit`."""
    study, fields, begins, offsets = "", None, [segment.begin], [0]
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if described := segment.read_description(file, path):
                study, fields = described
                offsets = [file.tell()]
                _find_blocks(file.fileno(), path, begins, offsets, limit)
    except OSError as error:
        raise DamagedRecord(f"{path} cannot be read: {error}. Put back a copy of it") from error
    if limit is not None and begins[-1] != limit:
        raise DamagedRecord(
            f"{path}: expected the samples up to number {limit}, found those up to {begins[-1]}: the end of the file "
            "is lost. Put back a copy of it"
        )
    return SegmentPart(
        segment=segment,
        path=path,
        study=study,
        fields=fields,
        begins=begins,
        offsets=offsets,
        is_torn=limit is None and offsets[-1] < size,
    )


def _find_blocks(file: int, path: Path, begins: list[int], offsets: list[int], limit: int | None) -> None:
    """Follow the blocks from where the lists end, up to the first one that is not complete."""
    size = os.fstat(file).st_size
    while limit is None or begins[-1] < limit:
        data = os.pread(file, BLOCK_HEAD_BYTES, offsets[-1])
        if len(data) < BLOCK_HEAD_BYTES:
            return
        head = BlockHead.unpack(data)
        if head is None or head.number != begins[-1] or not 0 < head.num_entries <= MOST_ENTRIES:
            raise _damaged(path, begins[-1])
        end = offsets[-1] + head.values_begin + head.num_bytes
        if end > size:
            return
        begins.append(begins[-1] + head.num_entries)
        offsets.append(end)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordEntry:
    """One entry: the fields that a sample was sent with, or that are sent once per simulation; or the parameters."""

    kind: EntryKind
    simulation: int
    time_step: int
    fields: dict[str, npt.NDArray[Any]]
    parameters: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordBlock:
    """The heads of the entries of a block, and where in the file the values of each begin."""

    numbers: range
    heads: Heads
    starts: Sequence[int]
    file: int
    part: SegmentPart


class RankRecord:
    """The entries of one rank, `len()` of them, by their numbers. Holds open files until `close`.

    They are in the `parts` of these files. `is_closed`: the record ends as it does when a study ends in order.
    `warnings` say what is not in it.

    Raises:
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.parts = [part for part in parts_of_rank(folder, rank) if part.fields is not None]
        self._files = [open_regular(part.path) for part in self.parts]
        self._blocks = lru_cache(MOST_BLOCKS)(self._read_block)
        self._latest: RecordBlock | None = None
        self._num = self.parts[-1].stop if self.parts else 0
        try:
            self.is_closed = self._num > 0 and self.head(self._num - 1).kind == EntryKind.END
            self._num -= self.is_closed
            self.warnings = list(self._absences(folder))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._num

    def head(self, number: int) -> EntryHead:
        """The head of an entry.

        Raises:
            DamagedRecord: it is not as it was written.
        """
        block = self._find(number)
        return EntryHead(*block.heads[number - block.numbers.start].item())

    def heads(self) -> Iterator[tuple[int, Heads]]:
        """The heads of all entries in their order, many at a time, and the number of the first of them.

        Raises:
            DamagedRecord: they are not as they were written.
        """
        for which, part in enumerate(self.parts):
            for place, begin in enumerate(part.begins[:-1]):
                yield begin, self._blocks(which, place).heads[: self._num - begin]

    def read(self, number: int) -> RecordEntry:
        """An entry as it was written.

        Raises:
            DamagedRecord: it is not.
        """
        block, head = self._find(number), self.head(number)
        data = os.pread(block.file, head.num_bytes, block.starts[number - block.numbers.start])
        if len(data) < head.num_bytes or xxh3_64_intdigest(data) != head.checksum:
            raise _damaged(block.part.path, number)
        kind = EntryKind(head.kind)
        is_static = kind is EntryKind.STATICS
        has_fields = is_static or kind in SAMPLES
        fields = [it for it in block.part.fields or () if has_fields and it.is_static is is_static]
        are_parameters = kind is EntryKind.PARAMETERS
        try:
            found = unpack_fields(fields, head.present, b"" if are_parameters else data)
            parameters = np.frombuffer(data if are_parameters else b"", "<f8")
            if is_static and len(found) < len(fields):
                raise ValueError("a simulation sends all that it sends once")
        except ValueError as error:
            raise _damaged(block.part.path, number) from error
        return RecordEntry(
            kind=kind,
            simulation=head.simulation,
            time_step=head.time_step,
            fields=found,
            parameters=parameters,
        )

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _find(self, number: int) -> RecordBlock:
        """The block of an entry."""
        if self._latest is None or number not in self._latest.numbers:
            parts = enumerate(self.parts)
            which, part = next((which, it) for which, it in parts if it.segment.begin <= number < it.stop)
            self._latest = self._blocks(which, bisect_right(part.begins, number) - 1)
        return self._latest

    def _read_block(self, which: int, place: int) -> RecordBlock:
        part, file = self.parts[which], self._files[which]
        numbers, start = range(*part.begins[place : place + 2]), part.offsets[place]
        num_bytes = BLOCK_HEAD_BYTES + len(numbers) * HEAD.itemsize
        data = os.pread(file, num_bytes, start)
        head = BlockHead.unpack(data) if len(data) == num_bytes else None
        if head is None or head.heads_checksum != xxh3_64_intdigest(data[BLOCK_HEAD_BYTES:]):
            raise _damaged(part.path, numbers.start)
        heads = np.frombuffer(data, HEAD, offset=BLOCK_HEAD_BYTES)
        starts = list(accumulate(heads["num_bytes"].tolist(), initial=start + num_bytes))
        if starts[-1] != part.offsets[place + 1] or not KINDS.issuperset(heads["kind"].tolist()):
            raise _damaged(part.path, numbers.start)
        if heads["num_bytes"].max() > max(most_bytes(part.fields or ()), MOST_PARAMETERS_BYTES):
            raise _damaged(part.path, numbers.start)
        return RecordBlock(numbers=numbers, heads=heads, starts=starts, file=file, part=part)

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
        if self.parts and self.parts[-1].is_torn:
            yield f"the last block of {self.parts[-1].path} is not all there, and its samples are left out"


def is_record(folder: Path) -> bool:
    return (folder / STUDY_FILE).exists() or (folder / SUBFOLDER / STUDY_FILE).exists()


class Recording:
    """A record and the files of its ranks, which it holds open until `close`.

    `folder` is that of the record, or the output folder of the study that made it. `warnings` say what is not in it.

    Raises:
        ConfigError: there is no record that this version can read.
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SUBFOLDER if (folder / SUBFOLDER / STUDY_FILE).exists() else folder
        self.study = RecordedStudy.read(self.folder)
        with ExitStack() as stack:
            self.ranks: list[RankRecord] = []
            for rank in range(self.study.ranks):
                self.ranks.append(RankRecord(self.folder, rank))
                stack.callback(self.ranks[-1].close)
                self._check_study(self.ranks[-1])
            self._stack = stack.pop_all()
        self.warnings = [*self._not_repeated(), *(warning for rank in self.ranks for warning in rank.warnings)]

    def close(self) -> None:
        self._stack.close()

    def check(self, config: StudyConfig, parameters: Sequence[str]) -> None:
        """Refuse a study that cannot be trained from this record; `parameters` are the names of its parameters.

        Raises:
            ConfigError: study.json differs from the record.
        """
        self.study.check(config, parameters, where=str(self.folder))

    @property
    def latest(self) -> range:
        """The ranks of the last start of the study."""
        return range(self.study.latest_ranks or self.study.ranks)

    def simulations_at_once(self, config: StudyConfig) -> int:
        """Number of simulations that are gone through in turn where samples are windows."""
        return config.max_simulations_at_once

    @property
    def recorded_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The types of the fields, little-endian; ranks may have recorded different ones, which they are cast to."""
        recorded: dict[str, set[str]] = {}
        for record in self.ranks:
            for field in chain.from_iterable(part.fields or () for part in record.parts):
                recorded.setdefault(field.name, set()).add(field.dtype)
        return {name: np.result_type(*sorted(dtypes)).newbyteorder("<") for name, dtypes in recorded.items()}

    def _not_repeated(self) -> Iterator[str]:
        """A line on what restarts have changed in the training, which a replay does not."""
        if changes := [it.with_batch for it in self.study.changes if not it.name.startswith("study.")]:
            yield (
                "restarts have changed the recorded run, and not its replay, for which study.json and the server class "
                f"hold from the first batch on as they are now: {'; '.join(changes)}"
            )

    def _check_study(self, record: RankRecord) -> None:
        for part in record.parts:
            if part.study != self.study.identity:
                raise DamagedRecord(
                    f"{part.path} is of another study than {STUDY_FILE} beside it. Put back copies of both"
                )


def kept_dtypes(config: StudyConfig, recorded: Mapping[str, np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """The types in which a study keeps the fields: those of study.json, or else those that were recorded."""
    fields, unknown = config.study.fields.items(), np.dtype(np.float64)
    return {name: np.dtype(it.dtype or recorded.get(name, unknown)).newbyteorder("=") for name, it in fields}


def _damaged(path: Path, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{path}: the entry {number} is not as it was written, or not there. Put back a copy of the file; without "
        "one, nothing from there on can be trained on"
    )
