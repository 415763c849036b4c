"""Writes the record of one rank: its samples, in the order in which they enter the training stream.

Why: docs/decisions/0044-record-entries.md
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from stream_server.buffers import Slots
from stream_server.errors import ConfigError, SamplesNotWritten
from stream_server.failpoints import failpoint
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import (
    HEAD,
    MOST_ENTRIES,
    EntryKind,
    Heads,
    Segment,
    pack_fields,
    pack_heads,
)
from stream_server.server.replay.record_reader import parts_of_rank, segments_in
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.storage import disk

# A block is written once it is as large as that. A replay keeps the heads of its entries in memory.
BLOCK_BYTES = 2**20

log = logging.getLogger(__name__)


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
        study: RecordedStudy,
        *,
        rank: int,
        incarnation: int,
        position: int | None,
        rows: Slots,
        parameters_of: Callable[[int], npt.NDArray[np.float64]],
        gone: Mapping[int, int] | None = None,
        required: bool = False,
    ) -> None:
        self.folder = folder
        self.study = study
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
        self._step_fields: list[FieldSpec] = []
        self._static_fields: list[FieldSpec] = []
        self._sample = np.dtype([])
        self._file_bytes = 0
        self._heads: Heads = np.zeros(MOST_ENTRIES, HEAD)
        self._num_in_block = 0
        self._values = np.empty(BLOCK_BYTES, np.uint8)
        self._num_bytes = 0
        self._known: set[int] = set()
        self._waiting: list[tuple[EntryKind, int, int]] = []
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
                self.study.write(self.folder)
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
                self._describe()
                self._add(EntryKind.END)
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
        self._write_event(EntryKind.TRAJECTORY_END, simulation, time_step)

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
            self._describe()
            for simulation in np.unique(self.rows.simulation_ids[slots]).tolist():
                if simulation not in self._known:
                    self._add_simulation(simulation)
            num = min(MOST_ENTRIES, max(1, BLOCK_BYTES // self.rows.sample_bytes))
            for start in range(0, len(slots), num):
                self._add_samples(kind, slots[start : start + num])

    def _add_samples(self, kind: EntryKind, slots: Sequence[int]) -> None:
        rows = self.rows
        if not self._sample.itemsize or not all(there[slots].all() for there in rows.present.values()):
            for slot in slots:
                present, values = pack_fields(self._step_fields, self._values_of(slot))
                self._add(kind, int(rows.simulation_ids[slot]), int(rows.time_steps[slot]), present, values)
            return
        heads, data = self._next(len(slots), len(slots) * self._sample.itemsize)
        heads["kind"] = kind
        heads["simulation"], heads["time_step"] = rows.simulation_ids[slots], rows.time_steps[slots]
        heads["present"] = (1 << len(rows.arrays)) - 1
        heads["num_bytes"] = self._sample.itemsize
        samples = data.view(self._sample)
        for name, array in rows.arrays.items():
            samples[name] = array[slots]

    def _values_of(self, slot: int) -> dict[str, npt.NDArray[Any]]:
        """The fields that the sample in a slot has."""
        rows = self.rows
        there = {name: array[slot] for name, array in rows.arrays.items() if rows.present[name][slot]}
        return there | {name: there[name][: lengths[slot]] for name, lengths in rows.lengths.items() if name in there}

    def _add_simulation(self, simulation: int) -> None:
        """Add what all samples of a simulation share, before the first of them."""
        self._add(EntryKind.PARAMETERS, simulation, values=self.parameters_of(simulation).astype("<f8").tobytes())
        if statics := self.rows.statics[simulation]:
            present, values = pack_fields(self._static_fields, statics)
            self._add(EntryKind.STATICS, simulation, present=present, values=values)
        self._known.add(simulation)

    def _write_event(self, kind: EntryKind, simulation: int, time_step: int = 0) -> None:
        if not self._is_on:
            return
        self._waiting.append((kind, simulation, time_step))
        if self.rows.arrays and self.rows.statics.dtypes.keys() == self.rows.statics.shapes.keys():
            with self._ending_on_error():
                self._describe()

    def _describe(self) -> None:
        """Write what is known by now; the types of fields that are kept as sent come with the first sample."""
        if not self._file_bytes:
            rows, specs = self.rows, {field.name: field for field in self.study.fields}
            dtypes = {name: array.dtype for name, array in rows.arrays.items()} | rows.statics.dtypes
            fields = [replace(specs[name], dtype=dtype.newbyteorder("<").str) for name, dtype in dtypes.items()]
            self._step_fields = [field for field in fields if not field.is_static]
            self._static_fields = [field for field in fields if field.is_static]
            if not rows.lengths and rows.sample_bytes <= BLOCK_BYTES:
                self._sample = np.dtype([(field.name, field.dtype, field.shape) for field in self._step_fields])
            self._write(self._segment.description(fields, self.study.identity))
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._add(*event)

    def _add(
        self, kind: EntryKind, simulation: int = -1, time_step: int = 0, present: int = 0, values: bytes = b""
    ) -> None:
        """Add an entry to the block; one that is larger than a block is one of its own."""
        head = (kind, simulation, time_step, present, len(values), 0)
        if len(values) > BLOCK_BYTES:
            assert self._number is not None
            self._flush()
            self._number += 1
            self._write_block(np.array([head], HEAD), memoryview(values))
            return
        heads, data = self._next(1, len(values))
        heads[0] = head
        data[:] = np.frombuffer(values, np.uint8)

    def _next(self, num: int, num_bytes: int) -> tuple[Heads, npt.NDArray[np.uint8]]:
        """The next entries of the block: their heads, and the bytes of their values."""
        assert self._number is not None
        if self._num_in_block + num > MOST_ENTRIES or self._num_bytes + num_bytes > BLOCK_BYTES:
            self._flush()
        heads = self._heads[self._num_in_block : self._num_in_block + num]
        values = self._values[self._num_bytes : self._num_bytes + num_bytes]
        self._num_in_block += num
        self._num_bytes += num_bytes
        self._number += num
        return heads, values

    def _flush(self) -> None:
        num, self._num_in_block = self._num_in_block, 0
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num:
            self._write_block(self._heads[:num], self._values[:num_bytes].data)
        if self._sync_error is not None:
            raise self._sync_error

    def _write_block(self, heads: Heads, values: memoryview) -> None:
        """Write the latest entries as a block."""
        assert self._number is not None
        self._write(pack_heads(self._number - len(heads), heads, values), values)
        failpoint("record.appended")

    def _write(self, *parts: bytes | memoryview) -> None:
        assert self._file is not None
        for part in parts:
            disk.write_all(self._file, memoryview(part))
        self._file_bytes += sum(map(len, parts))

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ConfigError) as error:
            self.error = error
            self._number = None
            with suppress(OSError):
                self._leave_whole_blocks()
            if self.required:
                raise self._not_written(error) from error
            log.error("samples are not recorded any more, and the study goes on without it: %s", error)
            with suppress(OSError), open(self.marker, "w", encoding="utf-8", opener=disk.open_regular) as file:
                file.write(f"{error}\n")

    def _not_written(self, error: BaseException) -> SamplesNotWritten:
        return SamplesNotWritten(
            f"{self.folder}: the samples cannot be recorded: {error}. Make room, or repair the disk, and run the "
            "same command again: it goes on from the last checkpoint"
        )

    def _leave_whole_blocks(self) -> None:
        if self._file is not None and os.fstat(self._file).st_size > self._file_bytes:
            disk.truncate(self._file, self._file_bytes)


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
    segments = segments_in(folder)
    ends: dict[int, int | None] = {segment.rank: 0 for segment in segments}
    # A rank that is not in the checkpoint ends where its last file begins that is not newer.
    ends |= {segment.rank: segment.begin for segment in segments if segment.incarnation <= incarnation} | dict(saved)
    gone = {other: end for other, end in ends.items() if rank == 0 and other >= num_ranks and end is not None}
    return ends.get(rank, 0), gone


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
        if part.fields is not None and part.segment != segment and part.path.stat().st_size > part.end:
            disk.truncate(part.path, part.end)
            failpoint("record.truncated")
    return path
