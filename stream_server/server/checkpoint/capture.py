"""Capture: the state that each rank saves in a checkpoint, as it is between two steps."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.server.checkpoint.folder import (
    HELD_OUT,
    RANK,
    SAMPLES,
    STATICS,
    STUDY,
    Manifest,
    rank_folder,
)
from stream_server.server.checkpoint.random_states import random_states
from stream_server.server.checkpoint.user_state import learned_files
from stream_server.server.intake.source import ReceptionSnapshot, Source
from stream_server.server.progress.phases import Phases
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
    frozen and written from where they are. `scores` gives what this rank has counted of simulations since the last log
    point, nothing where no class learns from it.
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
    phases: Phases
    callbacks: Callbacks
    wall_s: Callable[[], float]
    threads: Sequence[int]
    scores: Callable[[], list[Any]] = list
    _taken: ReceptionSnapshot | None = None
    _batches: int = 0

    @property
    def has_pressure(self) -> bool:
        return self.source.has_pressure

    def version(self) -> tuple[int, int]:
        return self.progress.batches, self.source.num_received

    def capture(self) -> list[PendingFile]:
        """Capture this rank's state as it is now; gives the files, which are written later.

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
        rows = [self._samples(taken), self._held_out(taken), *self._statics(taken)]
        return [*rows, self._rank(taken), *self._shared(taken)]

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
        taken, self._taken = self._taken, None
        assert taken is not None
        self.source.committed(taken, checkpoint, self._batches)
        self.callbacks.tell("on_checkpoint", path)

    @property
    def _folder(self) -> str:
        return rank_folder(self.ranks.rank)

    def _samples(self, taken: ReceptionSnapshot) -> PendingFile:
        frozen, buffer = taken.buffer, self.buffer

        def write(file: ChecksumFile) -> None:
            layout = _layout_of_samples(taken)
            for chunk in write_rows(file, layout, lambda name, rows: frozen.rows(name, rows.start, rows.stop)):
                buffer.thaw(frozen, chunk.start, chunk.stop)

        return PendingFile(path=f"{self._folder}/{SAMPLES}", write=write, release=lambda: buffer.thaw_all(frozen))

    def _held_out(self, taken: ReceptionSnapshot) -> PendingFile:
        held_out = taken.validation

        def write(file: ChecksumFile) -> None:
            for _ in write_rows(file, held_out.layout, held_out.values):
                pass

        return PendingFile(path=f"{self._folder}/{HELD_OUT}", write=write)

    def _statics(self, taken: ReceptionSnapshot) -> list[PendingFile]:
        if not self.buffer.slots.statics.shapes:
            return []
        statics = taken.buffer.statics

        def write(file: ChecksumFile) -> None:
            for _ in write_rows(file, _layout_of_statics(taken), statics.rows):
                pass

        return [PendingFile(path=f"{self._folder}/{STATICS}", write=write)]

    def _rank(self, taken: ReceptionSnapshot) -> PendingFile:
        state = {
            "num_drawn": self.stream.num_drawn,
            "num_dropped": self.stream.num_dropped,
            "prefetch_s": self.stream.prefetch_s,
            "phases_s": dict(self.phases.seconds),
            "random": random_states(),
            "step": self.step.random_state(),
            "normalization": [self.server.normalization.rank_state()],
            "scores": [self.scores()],
        }

        def write(file: ChecksumFile) -> None:
            buffer, held_out, statics = taken.buffer, taken.validation, taken.buffer.statics
            more = {
                "buffer": buffer.state(),
                "samples": _layout_of_samples(taken).to_plain(),
                "held_out": held_out.state(),
                "held_out_samples": held_out.layout.to_plain(),
                "statics": {
                    "simulations": np.array(statics.simulations, np.int64),
                    "observed": np.array(statics.observed, bool),
                },
                "static_fields": _layout_of_statics(taken).to_plain(),
            }
            reception = {**taken.state, "record": taken.sync_record()}
            write_state(file, {**state, **more, "reception": reception})

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
        }
        return [
            PendingFile(path=STUDY, write=lambda file: write_state(file, study)),
            *learned_files(self.server, self.step, self.callbacks, allow_pickle=self.config.checkpoint.allow_pickle),
        ]


def _layout_of_samples(taken: ReceptionSnapshot) -> SampleLayout:
    frozen = taken.buffer
    return SampleLayout(num_rows=len(frozen), fields=_described(frozen.fields), lengths=frozen.lengths)


def _layout_of_statics(taken: ReceptionSnapshot) -> SampleLayout:
    statics = taken.buffer.statics
    return SampleLayout(num_rows=len(statics), fields=_described(statics.fields), lengths=statics.lengths)


def _described(
    fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((name, dtype.str, shape) for name, (dtype, shape) in fields.items())


@cache
def versions(mpi: str = "") -> Mapping[str, str]:
    """Versions of Python and of the packages that matter, without importing them; `mpi` names the MPI."""
    # Once, since it reads files of each package (2 ms in all), and rank 0 asks at every checkpoint.
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "mpi": mpi} if mpi else found
