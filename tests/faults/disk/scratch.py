"""A place in memory where disks are put together again, one at a time."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.disk.model import Tree

MEMORY = Path("/dev/shm")


class Scratch:
    """Gives folders with a content; the one before is gone then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, tree: Tree) -> Path:
        """A new folder with these files and folders."""
        shutil.rmtree(self._folder / str(self._number), ignore_errors=True)
        self._number += 1
        top = self._folder / str(self._number)
        put(tree, str(top))
        return top


@contextmanager
def scratch() -> Iterator[Scratch]:
    """One that is gone with the block."""
    with folder_in_memory() as folder:
        yield Scratch(folder)


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder that is gone with the block; in memory, where syncing takes no time, if the machine has one there."""
    is_there = os.access(MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="sst-disk-", dir=MEMORY if is_there else None) as folder:
        yield Path(folder)


def put(tree: Tree, folder: str) -> None:
    """Make a folder with this content."""
    os.mkdir(folder)
    for name, node in tree.items():
        path = f"{folder}/{name}"
        if isinstance(node, bytes):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            while node:
                node = node[os.write(file, node) :]
            os.close(file)
        else:
            put(node, path)


def taken(folder: Path) -> Tree:
    """The content of a folder."""
    tree: Tree = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            tree[entry.name] = taken(path) if entry.is_dir(follow_symlinks=False) else path.read_bytes()
    return tree
