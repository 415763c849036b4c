"""What of a generation one rank writes, and how far it got."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from stream_server.disk import make_folder, remove_file, remove_folder, sync_folder
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.checksum_file import ChecksumFile
from stream_server.server.checkpoint.manifest import FileRecord, is_inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file of a generation, by its path in it.

    `write` runs in the saver's thread and writes the state of the moment at which the save began. `release` runs
    there exactly once, right after `write` or in its stead: rows that were frozen for it may change again.
    """

    path: str
    write: Callable[[ChecksumFile], None]
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """This rank's part is on disk."""

    number: int
    files: Mapping[str, FileRecord] = field(default_factory=dict)


class Writing:
    """The files of one rank while they are written, one after the other. Saver thread only."""

    def __init__(self, folder: Path, *, before_chunk: Callable[[], None]) -> None:
        self._folder = folder
        self._before_chunk = before_chunk
        self._made: list[Path] = []
        self._folders = {folder}

    def run(self, parts: Sequence[Part]) -> dict[str, FileRecord]:
        """Write all parts and put them on disk; whatever happens, each is released once.

        Raises:
            OSError: the disk is full or fails.
            Exception: whatever a part raised.
        """
        waiting = list(parts)
        files = {}
        try:
            make_folder(self._folder)
            while waiting:
                part = waiting.pop(0)
                try:
                    files[part.path] = self._write(part)
                finally:
                    part.release()
            for folder in self._folders:
                sync_folder(folder)
        finally:
            with ExitStack() as stack:
                for part in waiting:
                    stack.callback(part.release)
        return files

    def remove(self) -> None:
        """Take back what was written, as far as possible: a restart sweeps up the rest."""
        for path in self._made:
            with contextlib.suppress(OSError):
                remove_file(path)
        for folder in sorted(self._folders, key=lambda folder: -len(folder.parts)):
            # Other ranks may still have something in it.
            with contextlib.suppress(OSError):
                remove_folder(folder)

    def _write(self, part: Part) -> FileRecord:
        assert is_inside(part.path), f"{part.path!r} is no path within a generation"
        self._before_chunk()
        path = self._folder / part.path
        self._folders.update(folder for folder in path.parents if folder.is_relative_to(self._folder))
        make_folder(path.parent)
        failpoint("checkpoint.before_part")
        with ChecksumFile(path, before_chunk=self._before_chunk) as file:
            self._made.append(path)
            part.write(file)
            record = file.close()
        failpoint("checkpoint.part_written")
        return record
