"""Writes the record of one rank: its samples, in the order in which they enter the training stream.

Why: docs/decisions/0044-record-entries.md
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from stream_server.buffers.statics import StaticFields
from stream_server.errors import ConfigError, SamplesNotWritten
from stream_server.failpoints import failpoint
from stream_server.server.replay.record_format import (
    Entries,
    EntryKind,
    EntryLayout,
    RecordFacts,
    Segment,
    set_checksums,
)
from stream_server.server.replay.record_reader import parts_of_rank, ranks_in, segments_in
from stream_server.storage import disk

BLOCK_BYTES = 2**20

log = logging.getLogger(__name__)


class Rows(Protocol):
    """The slots of a buffer, as they are recorded."""

    arrays: dict[str, npt.NDArray[Any]]
    lengths: dict[str, npt.NDArray[np.int64]]
    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]
    present: dict[str, npt.NDArray[np.bool_]]
    statics: StaticFields


class Recorder:
    """Appends entries to this rank's record. A context manager; leaving it ends the record in order.

    Entered and left in the main thread while there is no receiver; all else but `sync` is called under the receiver's
    turn. A full disk or another error ends the recording and not the study: it is logged once and stays in `error`, and
    a file `rank-<r>.incomplete` says why. Unless it is `required`: then nothing is received that is not recorded, and
    every method raises `SamplesNotWritten`.

    Args:
        folder: where the record is, which all ranks share.
        incarnation: which start of the study this is.
        position: where to go on: 0, what `position` was when the checkpoint was taken that the study continues, or None
            when the recording was over by then. What a later incarnation wrote beyond it is cut off.
        rows: the slots of the buffer.
        parameters_of: gives the parameters of a simulation of which samples came.
        gone: where the records of ranks end that the study had, and no longer has. Rank 0 only.
        required: the study ends with the recording.
    """

    def __init__(
        self,
        folder: Path,
        facts: RecordFacts,
        *,
        rank: int,
        incarnation: int,
        position: int | None,
        rows: Rows,
        parameters_of: Callable[[int], npt.NDArray[np.float64]],
        gone: Mapping[int, int] | None = None,
        required: bool = False,
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.rank = rank
        self.incarnation = incarnation
        self.rows = rows
        self.parameters_of = parameters_of
        self.gone = dict(gone or {})
        self.required = required
        self.error: BaseException | None = None
        self._begins_over = position is None
        self._number = position
        self._segment = Segment(incarnation=incarnation, begin=position or 0, rank=rank)
        self._file: int | None = None
        self._layout: EntryLayout | None = None
        self._block: Entries = np.empty(0)
        self._num_in_block = 0
        self._known: set[int] = set()
        self._waiting: list[tuple[EntryKind, int, int | None]] = []
        self._sync_error: OSError | None = None

    @property
    def marker(self) -> Path:
        """Is there when the recording has ended with an error."""
        return self.folder / f"rank-{self.rank}.incomplete"

    @property
    def is_over(self) -> bool:
        """Whether nothing is recorded any more, although the study may go on."""
        return self._begins_over or self.error is not None

    def __enter__(self) -> Self:
        if self._number is None:
            log.warning("samples are not recorded any more: %s says why", self.marker)
            return self
        with self._ending_on_error():
            disk.make_folder(self.folder)
            if self.rank == 0:
                self.facts.write(self.folder)
            for rank, begin in self.gone.items():
                begin_segment(self.folder, Segment(incarnation=self.incarnation, begin=begin, rank=rank))
            path = begin_segment(self.folder, self._segment)
            self._file = disk.open_to_append(path)
            if disk.exists(self.marker):
                disk.remove_file(self.marker)
                disk.sync_folder(self.folder)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._ending_on_error():
            if self._is_on:
                self._write_preamble()
                self._write_control(EntryKind.END)
                self._flush()
                assert self._file is not None
                disk.sync(self._file)
        self._number = None
        file, self._file = self._file, None
        if file is not None:
            with self._ending_on_error():
                disk.close(file)

    def append(self, slots: Sequence[int]) -> None:
        """Record the samples that have just been admitted to the stream, in this order."""
        self._append(EntryKind.SAMPLE, slots)

    def append_held_out(self, slots: Sequence[int]) -> None:
        """Record samples that are kept for validation, before their slots are free."""
        self._append(EntryKind.HELD_OUT, slots)

    def finish(self, simulation: int) -> None:
        """Record that all steps of a simulation have come, on all ranks."""
        self._write_event(EntryKind.FINISHED, simulation)

    def end_trajectory(self, simulation: int, time_step: int) -> None:
        """Record that the steps of a simulation behind this one are of an attempt that computes something else."""
        self._write_event(EntryKind.PARAMETERS, simulation, time_step)

    def withdraw(self, simulation: int) -> None:
        """Record that what came of a simulation is not to be trained on."""
        self._write_event(EntryKind.WITHDRAWN, simulation)

    def position(self) -> int | None:
        """The number of entries, for the checkpoint that is being taken; None when the recording is over.

        Raises:
            SamplesNotWritten: it is over, although it is required.
        """
        if self.required and self.error is not None:
            raise self._not_written(self.error) from self.error
        with self._ending_on_error():
            if self._is_on:
                self._flush()
        return self._number if self._is_on else None

    def sync(self, position: int | None) -> int | None:
        """Put the entries up to `position` on disk; gives what the checkpoint is to keep of it. Any thread."""
        if position is None or self._file is None or self._sync_error is not None:
            return None
        try:
            disk.sync(self._file)
            failpoint("record.synced")
        except OSError as error:
            # The file is the receiver's: it ends the recording when it comes back to it.
            self._sync_error = error
            if self.required:
                raise
            return None
        return position

    @property
    def _is_on(self) -> bool:
        return self._number is not None and self.error is None

    def _append(self, kind: EntryKind, slots: Sequence[int]) -> None:
        if not slots or not self._is_on:
            return
        with self._ending_on_error():
            self._write_preamble()
            for simulation in np.unique(self.rows.simulation_ids[slots]).tolist():
                if simulation not in self._known:
                    self._write_control(EntryKind.PARAMETERS, simulation)
                    self._write_statics(simulation)
                    self._known.add(simulation)
            for start in range(0, len(slots), len(self._block)):
                self._write_samples(kind, slots[start : start + len(self._block)])

    def _write_samples(self, kind: EntryKind, slots: Sequence[int]) -> None:
        rows, entries = self.rows, self._next_entries(len(slots))
        head = entries["head"]
        head["simulation"] = rows.simulation_ids[slots]
        head["time_step"] = rows.time_steps[slots]
        head["kind"] = kind
        present = np.zeros(len(slots), np.uint64)
        for bit, (name, array) in enumerate(rows.arrays.items()):
            if name in rows.lengths:
                for entry, slot, length in zip(entries, slots, rows.lengths[name][slots], strict=True):
                    entry["fields"][name][:length] = array[slot, :length]
                entries["lengths"][name] = rows.lengths[name][slots]
            else:
                entries["fields"][name] = array[slots]
            present |= rows.present[name][slots].astype(np.uint64) << np.uint64(bit)
        head["present"] = present
        set_checksums(entries)

    def _write_statics(self, simulation: int) -> None:
        assert self._layout is not None
        statics = self.rows.statics[simulation]
        pieces = self._layout.pieces(statics)
        for start in range(0, len(pieces), len(self._block)):
            some = pieces[start : start + len(self._block)]
            entries = self._next_entries(len(some))
            head = entries["head"]
            head["simulation"] = simulation
            head["time_step"] = np.arange(len(pieces) - start, len(pieces) - start - len(some), -1) - 1
            head["kind"] = EntryKind.STATICS
            entries["piece"] = some
            for name in self.rows.statics.ragged:
                entries["lengths"][name] = len(statics[name])
            set_checksums(entries)

    def _write_event(self, kind: EntryKind, simulation: int, trajectory_end: int | None = None) -> None:
        if not self._is_on:
            return
        self._waiting.append((kind, simulation, trajectory_end))
        if self.rows.arrays and self.rows.statics.dtypes.keys() == self.rows.statics.shapes.keys():
            with self._ending_on_error():
                self._write_preamble()

    def _write_preamble(self) -> None:
        """Write what is known by now; the types of fields that are kept as sent come with the first sample."""
        if self._layout is None:
            rows, specs = self.rows, {field.name: field for field in self.facts.fields}
            dtypes = {name: array.dtype for name, array in rows.arrays.items()} | rows.statics.dtypes
            fields = [replace(specs[name], dtype=dtype.newbyteorder("<").str) for name, dtype in dtypes.items()]
            self._layout = EntryLayout(fields, len(self.facts.parameters))
            self._block = np.zeros(max(1, BLOCK_BYTES // self._layout.num_bytes), self._layout.dtype)
            self._write(self._segment.preamble(self._layout, self.facts.identity))
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._write_control(*event)

    def _write_control(self, kind: EntryKind, simulation: int = -1, trajectory_end: int | None = None) -> None:
        entry = self._next_entries(1)
        entry["head"]["simulation"] = simulation
        entry["head"]["kind"] = kind
        if kind is EntryKind.PARAMETERS:
            entry["parameters"] = self.parameters_of(simulation)
        if trajectory_end is not None:
            entry["head"]["time_step"] = trajectory_end
            entry["head"]["present"] = 1
        set_checksums(entry)

    def _next_entries(self, num: int) -> Entries:
        """The next entries of the block, all zero but for their numbers."""
        assert self._number is not None
        if self._num_in_block + num > len(self._block):
            self._flush()
        entries = self._block[self._num_in_block : self._num_in_block + num]
        entries.view(np.uint8)[:] = 0
        entries["head"]["number"] = np.arange(self._number, self._number + num)
        self._num_in_block += num
        self._number += num
        return entries

    def _flush(self) -> None:
        num, self._num_in_block = self._num_in_block, 0
        if num:
            self._write(self._block[:num].view(np.uint8))
            failpoint("record.appended")
        if self._sync_error is not None:
            raise self._sync_error

    def _write(self, data: Any) -> None:
        assert self._file is not None
        disk.write_all(self._file, memoryview(data))

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ConfigError) as error:
            self.error = error
            self._number = None
            with suppress(OSError):
                self._leave_whole_entries()
            if self.required:
                raise self._not_written(error) from error
            log.error("samples are not recorded any more, and the study goes on without it: %s", error)
            with suppress(OSError), open(self.marker, "w", encoding="utf-8", opener=disk.ordinary) as file:
                file.write(f"{error}\n")

    def _not_written(self, error: BaseException) -> SamplesNotWritten:
        return SamplesNotWritten(
            f"{self.folder}: the samples cannot be recorded: {error}. Make room, or repair the disk, and run the "
            "same command again: it goes on from the last checkpoint"
        )

    def _leave_whole_entries(self) -> None:
        if self._file is None or self._layout is None:
            return
        file_bytes = os.fstat(self._file).st_size
        num_bytes = file_bytes - len(self._segment.preamble(self._layout, self.facts.identity))
        disk.truncate(self._file, file_bytes - num_bytes % self._layout.num_bytes if num_bytes >= 0 else 0)


def begins_and_ends(
    folder: Path, saved: Mapping[int, int | None], *, incarnation: int, rank: int, num_ranks: int
) -> tuple[int | None, dict[int, int]]:
    """The place at which the record of a rank goes on, and, for rank 0, those at which ranks that are gone end.

    What ranks wrote after the checkpoint that the study continues is sent again, and must not stay: also of ranks of
    which that checkpoint knows nothing, since there were more of them in between, or before it.

    Args:
        saved: the positions in that checkpoint, as far as this rank has to know them.
        incarnation: the one that wrote it, 0 if there is none.
    """
    if None in saved.values():
        return None, {}
    ends = {other: _end_in(folder, other, incarnation) for other in ranks_in(folder)} | dict(saved)
    gone = {other: end for other, end in ends.items() if rank == 0 and other >= num_ranks and end is not None}
    return ends.get(rank, 0), gone


def _end_in(folder: Path, rank: int, incarnation: int) -> int:
    """The end of the record of a rank that is not in a checkpoint of this incarnation, which began a file there."""
    begun = [segment for segment in segments_in(folder, rank) if segment.incarnation <= incarnation]
    return begun[-1].begin if begun else 0


def begin_segment(folder: Path, segment: Segment) -> Path:
    """Make the file of a new incarnation, which ends what earlier ones contribute at `segment.begin`, for good.

    Nothing more is written to the file of a rank that the study no longer has.

    Raises:
        DamagedRecord: the record does not reach as far as `segment.begin`.
    """
    path = folder / segment.name
    disk.close(disk.create(path))
    disk.sync_folder(folder)
    for part in parts_of_rank(folder, segment.rank):
        if part.layout is not None and part.segment != segment and part.path.stat().st_size > part.offset(part.stop):
            disk.truncate(part.path, part.offset(part.stop))
            failpoint("record.truncated")
    return path
