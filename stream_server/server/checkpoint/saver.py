"""The thread that writes checkpoints while the training goes on, and the commit that makes one valid."""

import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from stream_server.errors import DamagedCheckpoint
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.failed_saves import noting_space, reason_of
from stream_server.server.checkpoint.folder import MANIFEST_FILE, CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.storage.checksums import FileRecord
from stream_server.storage.disk import exists, make_folder, remove_tree, rename_folder
from stream_server.storage.folders import FolderWriter, PendingFile

_log = logging.getLogger(__name__)


class Abandoned(Exception):
    """The study is left in the middle of a save."""


class Saver:
    """Writes this rank's part of checkpoints, and on rank 0 commits them, on a thread of its own. Main thread.

    `write` on all ranks, and once all have written, `commit` on rank 0; or `discard` on all ranks that were told of a
    failure. Jobs are done in their order, so a save may be begun while the files of another are still being removed.

    A context manager: leaving ends a save that is being written, finishes a commit that was asked for, and joins the
    thread.
    """

    def __init__(self, checkpoints: CheckpointFolder, *, incarnation: int, rank: int) -> None:
        self.checkpoints = checkpoints
        self._incarnation = incarnation
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"checkpoint-{rank}")
        self._writer: FolderWriter | None = None
        self._is_leaving = False

    def __enter__(self) -> Self:
        # A pool makes its thread with its first job: fail now where there can be none, and not at the first checkpoint.
        self._worker.submit(lambda: None)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_leaving = True
        self._worker.shutdown()

    def write(self, number: int, files: Sequence[PendingFile]) -> Future[dict[str, FileRecord]]:
        """Write this rank's files of checkpoint `number`. When this fails, what was written is removed."""
        folder = self.checkpoints.temporary(number, self._incarnation)
        writer = self._writer = FolderWriter(folder, before_chunk=self._check)
        return self._worker.submit(noting_space(self.checkpoints.folder)(_write), writer, files)

    def commit(self, manifest: Manifest) -> Future[Path]:
        """Commit the checkpoint that all ranks have written, and remove old ones. Rank 0; returns its folder."""
        committed = self._worker.submit(noting_space(self.checkpoints.folder)(commit), self.checkpoints, manifest)
        self._worker.submit(self._prune_after, committed)
        return committed

    def discard(self) -> None:
        """Remove what this rank wrote of the last save."""
        if self._writer is not None:
            self._worker.submit(self._writer.remove)

    def _check(self) -> None:
        if self._is_leaving:
            raise Abandoned("the study is left")

    def _prune_after(self, committed: Future[Path]) -> None:
        if committed.exception() is not None:
            return
        try:
            with noting_space(self.checkpoints.folder):
                self.checkpoints.prune()
        except Exception as error:
            _log.warning("old checkpoints could not be removed: %s", reason_of(error))


def _write(writer: FolderWriter, files: Sequence[PendingFile]) -> dict[str, FileRecord]:
    try:
        return write_files(writer, files)
    except Exception:
        writer.remove()
        raise


def write_files(writer: FolderWriter, files: Sequence[PendingFile]) -> dict[str, FileRecord]:
    """Write all files and put them on disk; whatever happens, each is released once.

    Raises:
        OSError: the disk is full or fails.
        Exception: whatever the `write` of a file raised.
    """
    waiting = list(files)
    written = {}
    try:
        make_folder(writer.folder)
        while waiting:
            file = waiting.pop(0)
            try:
                failpoint("checkpoint.before_part")
                written[file.path] = writer.write(file.path, file.write)
                failpoint("checkpoint.part_written")
            finally:
                file.release()
        writer.sync()
    finally:
        with contextlib.ExitStack() as stack:
            for file in waiting:
                stack.callback(file.release)
    return written


def commit(checkpoints: CheckpointFolder, manifest: Manifest) -> Path:
    """Make a checkpoint valid once all ranks' files are on disk; returns its folder. Rank 0 only.

    When this fails, what was committed before is as it was, and the new checkpoint is removed, unless it failed after
    the rename.

    Raises:
        StaleIncarnation: a newer server has begun.
        OSError: the disk is full or fails.
    """
    number, incarnation = manifest.checkpoint, manifest.incarnation
    temporary, path = checkpoints.temporary(number, incarnation), checkpoints.path(number)
    try:
        read_incarnations(checkpoints.folder).check(incarnation)
        failpoint("checkpoint.before_manifest")
        writer = FolderWriter(temporary)
        writer.write(MANIFEST_FILE, lambda file: file.write(manifest.to_bytes()))
        failpoint("checkpoint.manifest_written")
        writer.sync()
        _make_way(checkpoints, number)
        # Once more, since all that came before may have taken long.
        read_incarnations(checkpoints.folder).check(incarnation)
        failpoint("checkpoint.before_rename")
        rename_folder(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(temporary)
        raise
    failpoint("checkpoint.renamed")
    return path


def _make_way(checkpoints: CheckpointFolder, number: int) -> None:
    """Set aside a checkpoint of the same number, which an older server must have left."""
    if not exists(checkpoints.path(number)):
        return
    try:
        incarnation = checkpoints.manifest(number).incarnation
    except DamagedCheckpoint as error:
        checkpoints.set_aside(number, str(error))
        return
    if read_incarnations(checkpoints.folder).is_valid(number, incarnation):
        raise FileExistsError(f"checkpoint {number} is there already, and is valid")
    path = checkpoints.unused_path(f"{number:06d}.incarnation-{incarnation}")
    rename_folder(checkpoints.path(number), path)
    _log.warning("checkpoint %d of an older start of the server was in the way and is now %s", number, path)
