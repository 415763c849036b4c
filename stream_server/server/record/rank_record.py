"""Reads what one rank recorded."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.disk import ordinary
from stream_server.errors import DamagedRecord
from stream_server.server.record.layout import HEAD, Entries, Head, Kind, Layout, is_sound
from stream_server.server.record.segments import Part, parts

SKIM_BYTES = 2**20
LARGEST_SKIMMED_BYTES = 4096
KINDS = frozenset(Kind)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry. `fields` has the arrays of a sample that it was sent with, `parameters` is empty in a sample."""

    kind: Kind
    simulation: int
    time_step: int
    fields: dict[str, npt.NDArray[Any]]
    parameters: npt.NDArray[np.float64]


class RankRecord:
    """The entries of one rank, `len()` of them, by their numbers. Holds open files until `close`.

    `is_closed`: the record ends as it does when a study ends in order.

    Raises:
        DamagedRecord: a file is missing or damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._parts = [part for part in parts(folder, rank) if part.layout is not None]
        self._files = [ordinary(part.path) for part in self._parts]
        self._num = self._parts[-1].stop if self._parts else 0
        self._latest = 0
        try:
            self.is_closed = self._num > 0 and self.read(self._num - 1).kind is Kind.END
        except BaseException:
            self.close()
            raise
        self._num -= self.is_closed
        self._warn(folder)

    def __len__(self) -> int:
        return self._num

    @property
    def studies(self) -> dict[str, str]:
        """Of which study each of the files is, by name."""
        return {part.segment.name: part.study for part in self._parts}

    @property
    def layouts(self) -> list[Layout]:
        """How the entries are laid out, file by file."""
        return [part.layout for part in self._parts if part.layout is not None]

    def head(self, number: int) -> Head:
        """The head of an entry, unchecked."""
        file, part = self._find(number)
        return Head.unpack(self._read(file, part, number, HEAD.itemsize))

    def read(self, number: int) -> Entry:
        """An entry as it was written.

        Raises:
            DamagedRecord: it is not.
        """
        file, part = self._find(number)
        assert part.layout is not None
        data = self._read(file, part, number, part.layout.num_bytes)
        head = Head.unpack(data)
        if not is_sound(data, head) or head.number != number or head.kind not in KINDS:
            raise _damaged(part, number)
        entry = np.frombuffer(data, part.layout.dtype)[0]
        kind = Kind(head.kind)
        names = [field.name for field in part.layout.fields]
        present = [name for bit, name in enumerate(names) if head.present >> bit & 1]
        return Entry(
            kind=kind,
            simulation=head.simulation,
            time_step=head.time_step,
            fields={name: entry["fields"][name] for name in present},
            parameters=entry["parameters"] if kind is Kind.PARAMETERS else np.empty(0),
        )

    def heads(self) -> Iterator[Entries]:
        """The heads of all entries in their order, many at a time, unchecked but for their numbers."""
        for part, file in zip(self._parts, self._files, strict=True):
            assert part.layout is not None
            for start, stop in _blocks(part.segment.begin, min(part.stop, self._num), part.layout.num_bytes):
                heads = self._skim(file, part, part.layout, start, stop)
                wrong = np.flatnonzero(heads["number"] != np.arange(start, start + len(heads)))
                if len(wrong) or len(heads) < stop - start:
                    raise _damaged(part, start + int(wrong[0]) if len(wrong) else start + len(heads))
                yield heads

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())

    def _find(self, number: int) -> tuple[int, Part]:
        part = self._parts[self._latest]
        if not part.segment.begin <= number < part.stop:
            self._latest = next(i for i, part in enumerate(self._parts) if part.segment.begin <= number < part.stop)
            part = self._parts[self._latest]
        return self._files[self._latest], part

    def _read(self, file: int, part: Part, number: int, num_bytes: int) -> bytes:
        data = os.pread(file, num_bytes, part.place(number))
        if len(data) < num_bytes:
            raise _damaged(part, number)
        return data

    def _skim(self, file: int, part: Part, layout: Layout, start: int, stop: int) -> Entries:
        if layout.num_bytes <= LARGEST_SKIMMED_BYTES:
            data = os.pread(file, (stop - start) * layout.num_bytes, part.place(start))
            entries = np.frombuffer(data[: len(data) // layout.num_bytes * layout.num_bytes], layout.dtype)
            return entries["head"].copy()
        places = range(part.place(start), part.place(stop), layout.num_bytes)
        data = b"".join(os.pread(file, HEAD.itemsize, place) for place in places)
        return np.frombuffer(data[: len(data) // HEAD.itemsize * HEAD.itemsize], HEAD)

    def _warn(self, folder: Path) -> None:
        marker = folder / f"rank-{self.rank}.incomplete"
        if marker.exists():
            log.warning("rank %d recorded only some of its samples: %s", self.rank, marker.read_text().strip())
        elif not self.is_closed:
            log.warning(
                "the record of rank %d has no end, as if its study had been killed: there are %d entries",
                self.rank,
                self._num,
            )
        if self._parts and self._parts[-1].torn_bytes:
            log.warning("the last sample of %s is not all there, and is left out", self._parts[-1].path)


def _blocks(start: int, stop: int, entry_bytes: int) -> Iterator[tuple[int, int]]:
    num = max(1, SKIM_BYTES // max(HEAD.itemsize, min(entry_bytes, LARGEST_SKIMMED_BYTES)))
    for first in range(start, stop, num):
        yield first, min(stop, first + num)


def _damaged(part: Part, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{part.path}: the entry {number} is not as it was written, or not there. Put back a copy of the file; without "
        "one, nothing from there on can be trained on"
    )
