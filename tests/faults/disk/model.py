"""A run on a disk: what was there before, and every change since, in order.

Files and folders are known by numbers, which stay theirs whatever they are called.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

Tree = dict[str, Union["Tree", bytes]]
"""A folder as it is read: names with the content of files, or of folders."""

TOP = 0


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes of a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file was cut off, or filled up with zeros."""

    node: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Linked:
    """A new file or folder, under its name in folder `node`."""

    node: int
    name: str
    to: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A name is gone from folder `node`."""

    node: int
    name: str
    to: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """Another name within folder `node`, in the place of what had it before."""

    node: int
    old: str
    new: str
    to: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Synced:
    """The content of a file, or the names in a folder, are on disk."""

    node: int


@dataclass(frozen=True, slots=True)
class Told:
    """The program has said something that it must keep to from here on, or what it is about to do."""

    fact: object


FileChange = Wrote | Resized
FolderChange = Linked | Unlinked | Renamed
Step = FileChange | FolderChange | Synced | Told


@dataclass(slots=True)
class History:
    """All steps of a run, on the disk that had these files and folders before, all synced."""

    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {TOP: {}})
    steps: list[Step] = field(default_factory=list)

    @classmethod
    def of(cls, before: Tree) -> "History":
        """One that begins with a tree, and has no step yet."""
        history = cls()
        numbers = iter(range(TOP + 1, 1 << 30))
        history._add(before, TOP, numbers)
        return history

    def tell(self, fact: object) -> None:
        """Note what is promised or tried from here on."""
        self.steps.append(Told(fact))

    def facts(self, num_steps: int) -> list[object]:
        """The facts that were told within the first steps."""
        return [step.fact for step in self.steps[:num_steps] if isinstance(step, Told)]

    def _add(self, tree: Tree, folder: int, numbers: Iterator[int]) -> None:
        names = self.folders[folder] = {}
        for name, node in tree.items():
            number = names[name] = next(numbers)
            if isinstance(node, bytes):
                self.files[number] = node
            else:
                self._add(node, number, numbers)


def written(content: bytes, change: FileChange) -> bytes:
    """The content of a file after a change."""
    match change:
        case Resized(num_bytes=num_bytes):
            return content[:num_bytes].ljust(num_bytes, b"\0")
        case Wrote(offset=offset, data=data):
            return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def renamed(names: dict[str, int], change: FolderChange) -> None:
    """Change the names in a folder; a change that needs one which was lost may find nothing to do."""
    match change:
        case Linked(name=name, to=to):
            names[name] = to
        case Unlinked(name=name, to=to):
            if names.get(name) == to:
                del names[name]
        case Renamed(new=new, to=to):
            for name in [name for name, node in names.items() if node == to]:
                del names[name]
            names[new] = to
