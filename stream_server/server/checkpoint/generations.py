"""The checkpoint folder: generations under their numbers, and what they go through."""

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from stream_server.disk import ordinary, remove_tree, rename_folder, sync_folder
from stream_server.errors import DamagedCheckpoint
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.checksum_file import ChecksumFile, record_of
from stream_server.server.checkpoint.epochs import Epochs, read_epochs
from stream_server.server.checkpoint.manifest import MANIFEST_FILE, MAX_BYTES, MILESTONE_FILE, Manifest

REASON_FILE = "reason.txt"

_COMMITTED = re.compile(r"\d{6,}")
_DAMAGED = re.compile(r"\d{6,}\.damaged(\.\d+)?")
_LEFTOVER = re.compile(r"\d{6,}((\.epoch-\d+)?\.tmp|\.old)")

_log = logging.getLogger(__name__)


class Generations:
    """Generations on disk. Each is a folder named by its number, and is there completely or not at all.

    While it is written it is called NUMBER.epoch-E.tmp, so that an older server that wakes up meanwhile writes into
    another folder. NUMBER.old is being removed, NUMBER.damaged was found damaged, and NUMBER.epoch-E was committed by
    an older server after it had lost its place. Only rank 0 changes the folder, except that all ranks
    write below NUMBER.epoch-E.tmp.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"At least 1 generation must be kept, but keep is {keep}.")
        self.folder = folder
        self._keep = keep

    def path(self, number: int) -> Path:
        """Where a committed generation is."""
        return self.folder / f"{number:06d}"

    def temporary(self, number: int, epoch: int) -> Path:
        """Where it is while it is written."""
        return self.folder / f"{number:06d}.epoch-{epoch}.tmp"

    def numbers(self) -> list[int]:
        """The committed generations that are there, oldest first, of whatever worth."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        numbers = sorted(int(name) for name in names if _COMMITTED.fullmatch(name))
        return [number for number in numbers if self.path(number).is_dir()]

    def were_damaged(self) -> bool:
        """Whether generations were set aside as damaged."""
        return self.folder.is_dir() and any(_DAMAGED.fullmatch(name) for name in os.listdir(self.folder))

    def manifest(self, number: int) -> Manifest:
        """What a committed generation says of itself.

        Raises:
            DamagedCheckpoint: it cannot be read, or is of another generation.
        """
        path = self.path(number) / MANIFEST_FILE
        try:
            with open(path, "rb", opener=ordinary) as file:
                manifest = Manifest.from_bytes(file.read(MAX_BYTES))
        except OSError as error:
            raise DamagedCheckpoint(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error
        if manifest.generation != number:
            raise DamagedCheckpoint(f"{MANIFEST_FILE} is that of generation {manifest.generation}")
        return manifest

    def verify(self, manifest: Manifest, paths: Iterable[str]) -> dict[str, str]:
        """Read these files of a committed generation and say what is wrong with each that is not as it was written.

        Ranks may share the files among them.
        """
        folder = self.path(manifest.generation)
        problems = {path: _problem(folder, manifest, path) for path in paths}
        return {path: problem for path, problem in problems.items() if problem}

    def set_aside(self, number: int, why: str) -> Path:
        """Take a damaged generation out of the way; it is kept, with the reason in a file."""
        path = self._unused(f"{number:06d}.damaged")
        rename_folder(self.path(number), path)
        _log.warning("checkpoint %d is damaged and was set aside as %s: %s", number, path, why)
        try:
            (path / REASON_FILE).write_text(why + "\n", encoding="utf-8")
        except OSError as error:
            _log.warning("the reason could not be written beside it: %s", error)
        return path

    def commit(self, number: int, manifest: Manifest) -> Path:
        """Make the generation what a restart continues; every rank's files are on disk already.

        When this fails, what was committed before is as it was, and the new generation is removed, unless its own
        rename was the last thing that was done.

        Raises:
            StaleEpoch: a newer server has begun.
            OSError: the disk is full or fails.
        """
        temporary = self.temporary(number, manifest.epoch)
        try:
            read_epochs(self.folder).check(manifest.epoch)
            failpoint("checkpoint.before_manifest")
            with ChecksumFile(temporary / MANIFEST_FILE) as file:
                file.write(manifest.to_bytes())
                file.close()
            failpoint("checkpoint.manifest_written")
            sync_folder(temporary)
            self._make_way(number)
            # Once more, since all that came before may have taken long.
            read_epochs(self.folder).check(manifest.epoch)
            failpoint("checkpoint.before_rename")
            rename_folder(temporary, self.path(number))
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(temporary)
            raise
        failpoint("checkpoint.renamed")
        return self.path(number)

    def prune(self, protected: Collection[int] = ()) -> list[int]:
        """Remove all but the newest generations that count, and milestones; gives the numbers of those that went.

        Raises:
            OSError: one could not be removed; it does not count any more, and a later `sweep` finds it.
        """
        epochs = read_epochs(self.folder)
        good = [number for number in self.numbers() if self._counts(number, epochs)]
        removed = [
            number
            for number in good[: -self._keep]
            if number not in protected and MILESTONE_FILE not in self.manifest(number).files
        ]
        for number in removed:
            failpoint("checkpoint.before_prune")
            old = self.folder / f"{number:06d}.old"
            remove_tree(old)
            # Under this name it is none any more: a crash half-way leaves nothing that looks like a generation.
            rename_folder(self.path(number), old)
            remove_tree(old)
            failpoint("checkpoint.pruned")
        return removed

    def sweep(self) -> list[str]:
        """Remove what earlier starts left half-written or half-removed; before anything new is begun.

        Gives the names. What cannot be removed is logged and stays: it is in nobody's way.
        """
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        swept = []
        for name in sorted(name for name in names if _LEFTOVER.fullmatch(name)):
            try:
                remove_tree(self.folder / name)
                swept.append(name)
            except OSError as error:
                _log.warning("%s is left over and could not be removed: %s", self.folder / name, error)
        return swept

    def _counts(self, number: int, epochs: Epochs) -> bool:
        try:
            return epochs.is_valid(number, self.manifest(number).epoch)
        except DamagedCheckpoint:
            return False

    def _make_way(self, number: int) -> None:
        """Set aside a generation of the same number, which an older server must have left."""
        if not self.path(number).exists():
            return
        try:
            epoch = self.manifest(number).epoch
        except DamagedCheckpoint as error:
            self.set_aside(number, str(error))
            return
        if read_epochs(self.folder).is_valid(number, epoch):
            raise FileExistsError(f"generation {number} is there already, and counts")
        path = self._unused(f"{number:06d}.epoch-{epoch}")
        rename_folder(self.path(number), path)
        _log.warning("checkpoint %d of an older start of the server was in the way and is now %s", number, path)

    def _unused(self, name: str) -> Path:
        names = itertools.chain([name], (f"{name}.{copy}" for copy in itertools.count(2)))
        return next(path for path in map(self.folder.joinpath, names) if not path.exists())


def _problem(folder: Path, manifest: Manifest, path: str) -> str:
    """What is wrong with a file; "" when nothing is."""
    expected = manifest.files[path]
    try:
        num_bytes = os.stat(folder / path).st_size
        if num_bytes != expected.num_bytes:
            return f"{path} has {num_bytes} bytes instead of {expected.num_bytes}"
        if record_of(folder / path) != expected:
            return f"{path} does not match its checksum"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""
