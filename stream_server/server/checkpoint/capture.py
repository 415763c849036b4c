"""Capture: the state that each rank saves in a checkpoint, as it is between two steps."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stream_server.buffers import Buffer, Frozen
from stream_server.buffers.statics import ArrayRows
from stream_server.config import StudyConfig
from stream_server.server.checkpoint.folder import (
    RANK,
    ROWS,
    STUDY,
    Manifest,
    rank_folder,
)
from stream_server.server.checkpoint.restore import Part
from stream_server.server.checkpoint.user_state import learned_files, rank_files, shard_files
from stream_server.server.intake.source import ReceptionSnapshot, Source
from stream_server.server.progress.changes import Changes
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.fingerprint import require_equal
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import Step
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.checksums import ChecksumFile, FileRecord
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import write_state
from stream_server.storage.sample_file import SampleLayout, write_rows
from stream_server.user_code import digest_of

PACKAGES = ("stream-server", "numpy", "pyzmq", "mpi4py", "torch")


@dataclass(kw_only=True, slots=True)
class StudyCapture:
    """Captures the study on each rank, between two steps. Main thread; `capture` is collective.

    Every rank saves what it has received and drawn, rank 0 also what is the same on all: the model, the progress, and
    the roster of the simulations. Arrays that training goes on to change are copied at once; the rows of the buffer are
    frozen and written from where they are. `parts` are those of the rank's training.
    """

    config: StudyConfig
    ranks: Ranks
    incarnation: int
    base: int
    source: Source
    buffer: Buffer
    stream: BatchStream
    server: StreamServer
    step: Step
    progress: Progress
    callbacks: Callbacks
    wall_s: Callable[[], float]
    threads: Sequence[int]
    parts: Mapping[str, Part]
    changes: Changes = field(default_factory=Changes)
    _taken: ReceptionSnapshot | None = None
    _batches: int = 0

    @property
    def has_pressure(self) -> bool:
        """Whether a checkpoint soon would spare simulations from being started again."""
        return self.source.has_pressure

    def version(self) -> tuple[int, int]:
        """A value that changes once there is anything new to save."""
        return self.progress.batches, self.source.num_received

    def capture(self) -> list[PendingFile]:
        """Capture this rank's state as it is now; returns the files, which are written later.

        Raises:
            RanksDiverged: the ranks hold different weights, of which nothing must be saved; on all ranks.
        """
        # The user's state must not change while it is saved.
        self.stream.quiesce()
        self.step.synchronize()
        require_equal(self.ranks, self.step.fingerprints)
        self.step.compare_saved()
        taken = self._taken = self.source.snapshot()
        self._batches = self.progress.batches
        rows: dict[str, Frozen | ArrayRows] = {"buffer": taken.buffer, "held_out": taken.validation}
        if self.buffer.slots.statics.shapes:
            rows["statics"] = taken.buffer.statics
        files = [self._rows(name, rows[name]) for name in rows]
        own = rank_files(self.server, allow_pickle=self.config.checkpoint.allow_pickle)
        own += shard_files(self.server, self.step)
        return [*files, self._rank(taken, rows), *own, *self._shared(taken)]

    def manifest(self, checkpoint: int, files: Mapping[str, FileRecord]) -> Manifest:
        return Manifest(
            checkpoint=checkpoint,
            incarnation=self.incarnation,
            base=self.base,
            ranks=self.ranks.size,
            batches=self._batches,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            class_digest=digest_of(self.config.server.class_, self.config.study_dir),
            versions=versions(self.ranks.mpi_version),
            files=files,
        )

    def committed(self, checkpoint: int, path: Path) -> None:
        """Note that the state that was captured last is on disk."""
        taken, self._taken = self._taken, None
        assert taken is not None
        self.source.committed(taken, checkpoint, self._batches)
        self.callbacks.tell("on_checkpoint", path)

    @property
    def _folder(self) -> str:
        return rank_folder(self.ranks.rank)

    def _rows(self, name: str, frozen: Frozen | ArrayRows) -> PendingFile:
        path, buffer = f"{self._folder}/{ROWS[name]}", self.buffer

        def write(file: ChecksumFile) -> None:
            for chunk in write_rows(file, _layout(frozen), frozen.rows):
                if isinstance(frozen, Frozen):
                    buffer.thaw(frozen, chunk.start, chunk.stop)

        if isinstance(frozen, Frozen):
            return PendingFile(path=path, write=write, release=lambda: buffer.thaw_all(frozen))
        return PendingFile(path=path, write=write)

    def _rank(self, taken: ReceptionSnapshot, rows: Mapping[str, Frozen | ArrayRows]) -> PendingFile:
        names = [*self.parts, *taken.state, *rows, "record"]
        assert len({*names}) == len(names), f"two parts of the state have one name: {names}"
        state = {name: part.state_dict() for name, part in self.parts.items()} | taken.state

        def write(file: ChecksumFile) -> None:
            of_rows = {name: {**part.state(), "layout": _layout(part).to_plain()} for name, part in rows.items()}
            write_state(file, {**state, **of_rows, "record": taken.sync_record()})

        return PendingFile(path=f"{self._folder}/{RANK}", write=write)

    def _shared(self, taken: ReceptionSnapshot) -> list[PendingFile]:
        if self.ranks.rank != 0:
            return []
        study = {
            "parameters": list(self.server.parameter_names),
            "roster": taken.roster,
            "progress": self.progress.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "wall_s": self.wall_s(),
            "threads": list(self.threads),
            "changes": self.changes.state_dict(),
            "settings": json.dumps(self.config.resolved()),
        }
        return [
            PendingFile(path=STUDY, write=lambda file: write_state(file, study)),
            *learned_files(self.server, self.step, self.callbacks, allow_pickle=self.config.checkpoint.allow_pickle),
        ]


def _layout(frozen: Frozen | ArrayRows) -> SampleLayout:
    fields = tuple((name, dtype.str, shape) for name, (dtype, shape) in frozen.fields.items())
    return SampleLayout(num_rows=len(frozen), fields=fields, lengths=frozen.lengths)


@cache
def versions(mpi: str = "") -> Mapping[str, str]:
    """Versions of Python and of the packages that matter, without importing them; `mpi` names the MPI."""
    # Once, since it reads files of each package (2 ms in all), and rank 0 asks at every checkpoint.
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**versions, "mpi": mpi} if mpi else versions
