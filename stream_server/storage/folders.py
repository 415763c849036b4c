"""Folders that are on disk completely or not at all: written under another name, synced, and renamed."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.errors import DamagedCheckpoint
from stream_server.storage.checksums import ChecksumFile, FileRecord, record_of
from stream_server.storage.disk import (
    exists,
    make_folder,
    place_of,
    remove_file,
    remove_folder,
    remove_tree,
    rename_folder,
    sync_folder,
)

_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingFile:
    """A file that is yet to be written, by its path within its folder.

    `write` may be called in another thread, and writes the state of the moment at which this object was made. `release`
    is called exactly once, after `write` or in its stead: memory that was frozen for it may change again.
    """

    path: str
    write: Callable[[ChecksumFile], None]
    release: Callable[[], None] = lambda: None


class FolderWriter:
    """Writes files into a folder that has not its final name yet, and may be shared with other processes.

    For one thread. `before_chunk` is that of `ChecksumFile`.
    """

    def __init__(self, folder: Path, *, before_chunk: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._before_chunk = before_chunk
        self._files: list[Path] = []
        self._folders = {folder}

    def write(self, path: str, write: Callable[[ChecksumFile], None]) -> FileRecord:
        """Write a new file by its path in the folder; its content is on disk when this returns.

        Raises:
            OSError: the disk is full or fails.
            Exception: whatever `write` raised.
        """
        assert is_inside(path), f"{path!r} is no path within a folder"
        self._before_chunk()
        target = self.folder / path
        self._folders.update(folder for folder in target.parents if folder.is_relative_to(self.folder))
        make_folder(target.parent)
        with ChecksumFile(target, before_chunk=self._before_chunk) as file:
            self._files.append(target)
            write(file)
            return file.close()

    def sync(self) -> None:
        """Put the names of all files that were written on disk.

        Raises:
            OSError: the disk fails.
        """
        for folder in self._folders:
            sync_folder(folder)

    def remove(self) -> None:
        """Remove what was written, as far as possible, and the folders that are then empty."""
        for path in self._files:
            with contextlib.suppress(OSError):
                remove_file(path)
        for folder in sorted(self._folders, key=lambda folder: -len(folder.parts)):
            # Other processes may still have something in it.
            with contextlib.suppress(OSError):
                remove_folder(folder)


@contextmanager
def replace_folder(folder: Path) -> Iterator[FolderWriter]:
    """Write a whole folder in the `with` block, which takes the place of `folder` at its end, on disk.

    If anything raises, the older folder is as it was. A crash leaves the older folder, none, or the new one. While
    there is none, `folder.old` is the older one, and the next call renames it back. For the only writer of `folder`.

    Raises:
        OSError: the disk is full or fails.
    """
    new, old = folder.with_name(f"{folder.name}.tmp"), _old(folder)
    if exists(old) and not exists(folder):
        rename_folder(old, folder)
    for leftover in (new, old):
        remove_tree(leftover)
    writer = FolderWriter(new)
    try:
        make_folder(new)
        yield writer
        writer.sync()
        _replace(folder, new, old)
    finally:
        remove_tree(new)
    remove_tree(old)


def withdraw(folder: Path) -> None:
    """Remove a folder so that a crash half-way leaves nothing incomplete under its name.

    Raises:
        OSError: it could not be removed; it may be `folder.old` now.
    """
    old = _old(folder)
    remove_tree(old)
    rename_folder(folder, old)
    remove_tree(old)


def is_inside(path: str) -> bool:
    """Whether this is a relative path with no way out of the folder that it is in."""
    return all(_NAME.fullmatch(part) and part not in (".", "..") for part in path.split("/"))


def records_to_json(files: Mapping[str, FileRecord]) -> dict[str, Any]:
    """The sizes and checksums of files by their paths within a folder, as plain values."""
    return {path: record.to_json() for path, record in files.items()}


def records_from_json(plain: Any) -> dict[str, FileRecord]:
    """Read back what `records_to_json` gave.

    Raises:
        DamagedCheckpoint: it is something else, or names files outside of the folder.
    """
    if not isinstance(plain, dict) or not all(map(is_inside, plain)):
        raise DamagedCheckpoint("its files must be paths within its folder")
    return {path: FileRecord.from_json(record) for path, record in plain.items()}


def damaged_files(folder: Path, files: Mapping[str, FileRecord], paths: Iterable[str] | None = None) -> dict[str, str]:
    """Read files of a folder, all or `paths`; returns the problem of each that is not as written."""
    problems = {path: _problem(folder / path, path, files[path]) for path in (files if paths is None else paths)}
    return {path: problem for path, problem in problems.items() if problem}


def _problem(file: Path, path: str, expected: FileRecord) -> str:
    try:
        num_bytes = os.stat(place_of(file)).st_size
        if num_bytes != expected.num_bytes:
            return f"{path} has {num_bytes} bytes instead of {expected.num_bytes}"
        if record_of(file) != expected:
            return f"{path} does not match its checksum"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _replace(folder: Path, new: Path, old: Path) -> None:
    try:
        if exists(folder):
            rename_folder(folder, old)
        rename_folder(new, folder)
    except OSError:
        if exists(old) and not exists(folder):
            rename_folder(old, folder)
        raise
