"""The possible outcomes of unsynced changes of one file or one folder."""

from collections.abc import Callable, Sequence
from random import Random

from tests.faults.disk.model import FileChange, FolderChange, Renamed, Wrote, renamed, written

SECTOR_BYTES = 512

Names = dict[str, int]


def whole(content: bytes, changes: Sequence[FileChange]) -> bytes:
    """A file with all changes."""
    for change in changes:
        content = written(content, change)
    return content


def whole_folder(names: Names, changes: Sequence[FolderChange]) -> Names:
    """A folder with all changes."""
    names = dict(names)
    for change in changes:
        renamed(names, change)
    return names


def _all_content(content: bytes, changes: Sequence[FileChange], random: Random) -> bytes:
    return content


def _later_content(content: bytes, changes: Sequence[FileChange], random: Random) -> bytes:
    return whole(content, changes[: random.randrange(len(changes))])


def _some_content(content: bytes, changes: Sequence[FileChange], random: Random) -> bytes:
    return whole(content, [change for change in changes if random.random() < 0.5])


def _torn(content: bytes, changes: Sequence[FileChange], random: Random) -> bytes:
    place = random.randrange(len(changes))
    content, change = whole(content, changes[:place]), changes[place]
    if not isinstance(change, Wrote):
        return content
    end = random.randrange(len(change.data) + 1)
    if random.random() < 0.5:
        end -= (change.offset + end) % SECTOR_BYTES
    return written(content, Wrote(change.node, change.offset, change.data[: max(end, 0)])) if end > 0 else content


def _sectors(content: bytes, changes: Sequence[FileChange], random: Random) -> bytes:
    versions = [content]
    for change in changes:
        versions.append(written(versions[-1], change))
    num_bytes = len(random.choice([versions[-1], random.choice(versions)]))
    share = random.random()
    kept = []
    for start in range(0, num_bytes, SECTOR_BYTES):
        end = min(start + SECTOR_BYTES, num_bytes)
        version = versions[-1] if random.random() < share else random.choice(versions)
        kept.append(version[start:end].ljust(end - start, b"\0"))
    return b"".join(kept)


def _all_names(names: Names, changes: Sequence[FolderChange], random: Random) -> Names:
    return dict(names)


def _later_names(names: Names, changes: Sequence[FolderChange], random: Random) -> Names:
    return whole_folder(names, changes[: random.randrange(len(changes))])


def _some_names(names: Names, changes: Sequence[FolderChange], random: Random) -> Names:
    return whole_folder(names, [change for change in changes if random.random() < 0.5])


def _both_names(names: Names, changes: Sequence[FolderChange], random: Random) -> Names:
    renames = [change for change in changes if isinstance(change, Renamed) and not change.is_folder]
    if not renames:
        return _some_names(names, changes, random)
    rename = random.choice(renames)
    return {**whole_folder(names, changes[: changes.index(rename)]), rename.new: rename.to}


FILE_LOSSES: dict[str, Callable[[bytes, Sequence[FileChange], Random], bytes]] = {
    "all content": _all_content,
    "later content": _later_content,
    "some writes": _some_content,
    "a write torn": _torn,
    "some sectors": _sectors,
}
FOLDER_LOSSES: dict[str, Callable[[Names, Sequence[FolderChange], Random], Names]] = {
    "all names": _all_names,
    "later names": _later_names,
    "some names": _some_names,
    "half a rename": _both_names,
}
