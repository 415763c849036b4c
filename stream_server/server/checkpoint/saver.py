"""The thread that writes checkpoints while the training goes on, and the commit that makes one valid."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from stream_server.errors import DamagedCheckpoint
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.failures import SaveFailed, reason_of
from stream_server.server.checkpoint.folder import MANIFEST_FILE, CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.storage.checksums import FileRecord
from stream_server.storage.disk import exists, make_folder, remove_tree, rename_folder
from stream_server.storage.folders import FolderWriter, PendingFile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The part of this rank is on disk."""

    number: int
    files: Mapping[str, FileRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveCommitted:
    """The checkpoint is what a restart continues."""

    number: int
    path: Path


SaveOutcome = Saved | SaveCommitted | SaveFailed


class Abandoned(Exception):
    """The save is not wanted any more."""


class Saver:
    """Writes this rank's part of checkpoints, and on rank 0 commits them, in a thread of its own.

    `begin` → `poll` gives `Saved` or `SaveFailed` → once all ranks have `Saved`: `commit` on rank 0 → `poll` gives
    `SaveCommitted` or `SaveFailed`; or `discard` on all ranks. Each outcome is given once. All methods belong to the
    main thread and return at once, but for `wait`. Jobs are done in their order, so a save may be begun while the files
    of a discarded one are still being removed.

    A context manager: entering starts the thread. Leaving ends a save that is being written, finishes a commit
    that was asked for, and joins the thread.
    """

    def __init__(self, checkpoints: CheckpointFolder, *, incarnation: int, rank: int) -> None:
        self._checkpoints = checkpoints
        self._incarnation = incarnation
        self._thread = threading.Thread(target=self._work, name=f"checkpoint-{rank}")
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._expected: object = None
        self._outcome: SaveOutcome | None = None
        self._save = Save(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._save.unwanted = True
        self._jobs.put(None)
        self._thread.join()

    def path(self, number: int) -> Path:
        """The folder of checkpoint `number` once it is committed."""
        return self._checkpoints.path(number)

    def begin(self, number: int, files: Sequence[PendingFile]) -> None:
        """Begin to write this rank's files of checkpoint `number`."""
        save = self._save = Save(number)
        self._submit(save, lambda: self._write(save, files))

    def commit(self, number: int, manifest: Manifest) -> None:
        """Commit the checkpoint, and remove old ones. Rank 0, once all ranks have `Saved`."""
        assert number == self._save.number == manifest.checkpoint, "another save is under way"
        self._submit(self._save, lambda: self._commit(manifest), self._prune)

    def discard(self, number: int) -> None:
        """Give the save up, written or not, and remove this rank's files; no outcome is given for it."""
        save = self._save
        if number == save.number:
            save.unwanted = True
            with self._changed:
                self._expected = self._outcome = None
                self._changed.notify_all()
            self._put(save.remove)

    def poll(self) -> SaveOutcome | None:
        """The outcome of the job that was asked for last, given once; None while it is under way."""
        with self._changed:
            outcome, self._outcome = self._outcome, None
            return outcome

    def wait(self, timeout_s: float) -> bool:
        """Wait until `poll` has something to give, or nothing is under way; whether it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None or self._expected is None, timeout_s)
            return self._outcome is not None

    def _submit(
        self, save: "Save", job: Callable[[], SaveOutcome], afterwards: Callable[[], None] = lambda: None
    ) -> None:
        assert self._expected is None, "the save before is still under way"
        assert self._outcome is None, "the outcome of the save before was not asked for"
        self._expected = token = object()

        def do() -> None:
            try:
                outcome = job()
            except Exception as error:
                outcome = self._failed(save, error)
            with self._changed:
                if self._expected is token:
                    self._expected, self._outcome = None, outcome
                    self._changed.notify_all()
            if not isinstance(outcome, SaveFailed):
                afterwards()

        self._put(do)

    def _put(self, job: Callable[[], None]) -> None:
        assert self._thread.is_alive(), "the saver was not entered"
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _write(self, save: "Save", files: Sequence[PendingFile]) -> Saved:
        folder = self._checkpoints.temporary(save.number, self._incarnation)
        save.writer = FolderWriter(folder, before_chunk=save.check)
        return Saved(number=save.number, files=write_files(save.writer, files))

    def _commit(self, manifest: Manifest) -> SaveCommitted:
        return SaveCommitted(number=manifest.checkpoint, path=commit(self._checkpoints, manifest))

    def _prune(self) -> None:
        try:
            self._checkpoints.prune()
        except Exception as error:
            _log.warning("old checkpoints could not be removed: %s", reason_of(error, self._checkpoints.folder))

    def _failed(self, save: "Save", error: Exception) -> SaveFailed:
        save.remove()
        if isinstance(error, Abandoned):
            _log.info("checkpoint %d was abandoned", save.number)
        return SaveFailed(number=save.number, error=error, reason=reason_of(error, self._checkpoints.folder))


class Save:
    """A save: `unwanted` is set by the main thread and heeded by the saver's, which alone touches `writer`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.unwanted = False
        self.writer: FolderWriter | None = None

    def check(self) -> None:
        if self.unwanted:
            raise Abandoned(f"checkpoint {self.number} is not wanted any more")

    def remove(self) -> None:
        if self.writer is not None:
            self.writer.remove()


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
    """Make a checkpoint valid, of which the files of all ranks are on disk already; gives its folder. Rank 0 only.

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
