"""Notes what a program does to the disk while it does it."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stream_server.storage import disk
from tests.faults.disk.model import TOP, History, Linked, Renamed, Resized, Synced, Tree, Unlinked, Wrote


@contextmanager
def recorded(top: Path, before: Tree, *, unheard: Collection[str] = ()) -> Iterator[History]:
    """Note what is done below a folder, which looks like `before`, through the disk layer while the block lasts.

    Of what is `unheard`, "files" or "folders", syncing is not noted, as if the program had left it out.
    """
    history = History.of(before)
    real, disk.os = disk.os, RecordingOs(top, history, unheard)  # type: ignore[assignment]
    try:
        yield history
    finally:
        disk.os = real


class RecordingOs:
    """Stands in for `os`: every change is made, and those below a folder become steps of a history.

    What is synced is noted alone: the disk below is none that anybody takes the power from.
    """

    def __init__(self, top: Path, history: History, unheard: Collection[str]) -> None:
        self._top = f"{top}/"
        self._steps = history.steps
        self._unheard = unheard
        self._folders = {number: dict(names) for number, names in history.folders.items()}
        self._sizes = {number: len(content) for number, content in history.files.items()}
        self._next = 1 + max(*self._folders, *self._sizes, TOP)
        self._opened: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        if (place := self._place(path)) is not None:
            node = self._found(place)
            if node is None:
                node = self._made(place, is_folder=False)
            self._opened[descriptor] = [node, -1 if flags & os.O_APPEND else 0]
        return descriptor

    def close(self, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        num = os.write(descriptor, data)
        if opened := self._opened.get(descriptor):
            node, offset = opened
            if offset < 0:
                offset = self._sizes[node]
            else:
                opened[1] += num
            self._sizes[node] = max(self._sizes[node], offset + num)
            self._steps.append(Wrote(node, offset, bytes(data[:num])))
        return num

    def pwrite(self, descriptor: int, data: Any, place: int) -> int:
        num = os.pwrite(descriptor, data, place)
        if opened := self._opened.get(descriptor):
            node = opened[0]
            self._sizes[node] = max(self._sizes[node], place + num)
            self._steps.append(Wrote(node, place, bytes(data[:num])))
        return num

    def truncate(self, file: Any, num_bytes: int) -> None:
        os.truncate(file, num_bytes)
        node = self._opened[file][0] if isinstance(file, int) else self._found(self._place(file))
        if node is not None:
            self._sizes[node] = num_bytes
            self._steps.append(Resized(node, num_bytes))

    def fsync(self, descriptor: int) -> None:
        if opened := self._opened.get(descriptor):
            node = opened[0]
            if ("folders" if node in self._folders else "files") not in self._unheard:
                self._steps.append(Synced(node))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=dir_fd)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        if (place := self._place(path)) is not None:
            self._made(place, is_folder=True)

    def unlink(self, path: Any) -> None:
        os.unlink(path)
        self._gone(path)

    def rmdir(self, path: Any) -> None:
        os.rmdir(path)
        self._gone(path)

    def rename(self, old: Any, new: Any) -> None:
        os.rename(old, new)
        if (place := self._place(old)) is not None:
            *parents, name = place
            *others, new_name = self._place(new) or [""]
            assert parents == others, f"{old} was given a name in another folder: {new}"
            folder = self._folder(parents)
            to = self._folders[folder].pop(name)
            self._folders[folder][new_name] = to
            self._steps.append(Renamed(folder, name, new_name, to, to in self._folders))

    replace = rename

    def _made(self, place: list[str], *, is_folder: bool) -> int:
        number, self._next = self._next, self._next + 1
        folder = self._folder(place[:-1])
        self._folders[folder][place[-1]] = number
        if is_folder:
            self._folders[number] = {}
        else:
            self._sizes[number] = 0
        self._steps.append(Linked(folder, place[-1], number, is_folder))
        return number

    def _gone(self, path: Any) -> None:
        if (place := self._place(path)) is not None:
            folder = self._folder(place[:-1])
            self._steps.append(Unlinked(folder, place[-1], self._folders[folder].pop(place[-1])))

    def _place(self, path: Any) -> list[str] | None:
        """The names that lead to a path; None when that is somewhere else."""
        text = os.fspath(path)
        if text + "/" == self._top:
            return []
        return text[len(self._top) :].split("/") if text.startswith(self._top) else None

    def _found(self, place: list[str] | None) -> int | None:
        if place is None:
            return None
        return self._folders[self._folder(place[:-1])].get(place[-1]) if place else TOP

    def _folder(self, names: list[str]) -> int:
        folder = TOP
        for name in names:
            folder = self._folders[folder][name]
        return folder
