"""Changes of a file system that are still there after a crash."""

import os
import tempfile
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Put on disk which entries a folder has."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there; each is on disk in the one above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it: one call may take only a part."""
    while data:
        data = data[os.write(descriptor, data) :]


def replace_file(path: Path, data: bytes) -> None:
    """Put a small file in place so that whoever reads `path` finds all of it or the one before, even after a crash."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        try:
            write_all(descriptor, memoryview(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def rename_folder(old: Path, new: Path) -> None:
    """Rename within one folder, and put it on disk.

    Raises:
        OSError: `new` is there already and not empty, among other reasons.
    """
    os.rename(old, new)
    sync_folder(new.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; what somebody else removed meanwhile is no error."""
    for root, folders, files in os.walk(folder, topdown=False):
        for name in files:
            Path(root, name).unlink(missing_ok=True)
        for name in folders:
            _remove_folder(Path(root, name))
    _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        folder.unlink(missing_ok=True)
