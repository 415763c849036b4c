"""What a disk may hold after a power failure at any moment of a recorded run."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest


class Loss(Enum):
    """What a power failure takes of what was not synced."""

    NOTHING = auto()
    DATA = auto()  # the content of files; names survive
    EVERYTHING = auto()


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""


@dataclass
class Folder:
    entries: "dict[str, Node]" = field(default_factory=dict)
    synced: "dict[str, Node]" = field(default_factory=dict)


Node = File | Folder


def loaded(path: Path) -> Folder:
    """A folder that is on disk with all that is in it."""
    folder = Folder()
    for entry in path.iterdir():
        data = b"" if entry.is_dir() else entry.read_bytes()
        folder.entries[entry.name] = loaded(entry) if entry.is_dir() else File(data, data)
    folder.synced = dict(folder.entries)
    return folder


def unload(node: Node, path: Path, loss: Loss) -> None:
    """Make what is left of it after a power failure."""
    if isinstance(node, File):
        path.write_bytes(node.data if loss is Loss.NOTHING else node.synced)
        return
    path.mkdir()
    for name, entry in (node.synced if loss is Loss.EVERYTHING else node.entries).items():
        unload(entry, path / name, loss)


class Recorder:
    """Notes every change below a folder while it is made, as a step that can be taken again on a model."""

    def __init__(self, folder: Path) -> None:
        self.steps: list[Callable[[Folder], None]] = []
        self._top = folder
        self._paths: dict[int, Path] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("open", "close", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, self._noting(getattr(os, name), getattr(self, f"_{name}")))

    def after(self, num_steps: int, before: Folder) -> Folder:
        """Take the first steps on `before`, which is changed."""
        for step in self.steps[:num_steps]:
            step(before)
        return before

    def _noting(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def noted(*arguments: Any, **more: Any) -> Any:
            result = call(*arguments, **more)
            note(result, *arguments)
            return result

        return noted

    def _open(self, descriptor: int, path: Any, flags: int, *_: Any) -> None:
        if Path(path).is_relative_to(self._top):
            self._paths[descriptor] = Path(path)
            if flags & os.O_CREAT:
                self.steps.append(lambda top: self._folder(top, path).entries.setdefault(Path(path).name, File()))  # type: ignore[arg-type,return-value]

    def _close(self, _: None, descriptor: int) -> None:
        self._paths.pop(descriptor, None)

    def _write(self, num: int, descriptor: int, data: Any) -> None:
        if path := self._paths.get(descriptor):
            written = bytes(data[:num])

            def step(top: Folder) -> None:
                file = self._node(top, path)
                assert isinstance(file, File)
                file.data += written

            self.steps.append(step)

    def _fsync(self, _: None, descriptor: int) -> None:
        if path := self._paths.get(descriptor):

            def step(top: Folder) -> None:
                node = self._node(top, path)
                if isinstance(node, File):
                    node.synced = node.data
                else:
                    node.synced = dict(node.entries)

            self.steps.append(step)

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        self.steps.append(lambda top: self._folder(top, path).entries.update({Path(path).name: Folder()}))

    def _rename(self, _: None, old: Any, new: Any) -> None:
        def step(top: Folder) -> None:
            node = self._folder(top, old).entries.pop(Path(old).name)
            self._folder(top, new).entries[Path(new).name] = node

        self.steps.append(step)

    _replace = _rename

    def _unlink(self, _: None, path: Any, *__: Any) -> None:
        def step(top: Folder) -> None:
            del self._folder(top, path).entries[Path(path).name]

        self.steps.append(step)

    _rmdir = _unlink

    def _folder(self, top: Folder, path: Any) -> Folder:
        """The folder in which a path ends."""
        folder = self._node(top, Path(path).parent)
        assert isinstance(folder, Folder)
        return folder

    def _node(self, top: Folder, path: Path) -> Node:
        node: Node = top
        for name in path.relative_to(self._top).parts:
            assert isinstance(node, Folder)
            node = node.entries[name]
        return node
