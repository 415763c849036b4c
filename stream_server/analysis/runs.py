"""The runs below a folder, and the one that a user means."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from stream_server.analysis.reading import RunFolder, find_run, named
from stream_server.errors import ConfigError, NotRunning
from stream_server.machine.study_lock import RUN_LOCK, holder_of
from stream_server.storage.ownership import is_ours

# What a run has, beside its study.json, from its first moments on.
MARKS = (RUN_LOCK, "report.json", "checkpoints", "metrics")
MAX_DEPTH = 6
# To look at each takes some 50 µs on a disk, and more on a network file system.
MAX_FOLDERS = 100_000


def the_run(path: Path) -> RunFolder:
    """The run that a user means by this path.

    Raises:
        NotRunning: there is none.
    """
    path = named(path)
    # A run has a lock before it has a study.json.
    if is_run(path) or (path.is_dir() and holder_of(path / RUN_LOCK) is not None):
        return RunFolder(path)
    try:
        return find_run(path)
    except ConfigError as error:
        raise NotRunning(str(error)) from error


def is_run(path: Path) -> bool:
    """Whether this is the output folder of a run."""
    return (path / "study.json").is_file() and any((path / mark).exists() for mark in MARKS)


def runs_below(folder: Path, tell: Callable[[str], None]) -> list[RunFolder]:
    """The runs in a folder and the folders below it, by name; unreadable folders are left out.

    Each folder is looked at once, however many links lead to it, and a link of somebody else's is not followed. No more
    than MAX_FOLDERS are, the nearest first and of these the user's own; if there are more, `tell` is called with words.
    """
    runs: list[Path] = []
    seen = set[tuple[int, int]]()
    level: Iterable[Path] = [named(folder)]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for path, place in _own_first(level):
            if place in seen:
                continue
            if len(seen) == MAX_FOLDERS:
                tell(
                    f"{folder} has more than {MAX_FOLDERS:,} folders below it, and no run was looked for in those that "
                    "are furthest down: name a folder nearer to yours"
                )
                return [RunFolder(path) for path in sorted(runs)]
            seen.add(place)
            with suppress(OSError):
                if is_run(path):
                    runs.append(path)
                else:
                    below += islice(_folders_in(path), MAX_FOLDERS + 1 - len(below))
        level = below
    return [RunFolder(path) for path in sorted(runs)]


def _own_first(folders: Iterable[Path]) -> list[tuple[Path, tuple[int, int]]]:
    """The folders that are there, each with what tells it from all others, whatever leads to it."""
    known: list[tuple[bool, Path, tuple[int, int]]] = []
    for path in folders:
        with suppress(OSError):
            status = path.stat()
            known.append((not is_ours(status), path, (status.st_dev, status.st_ino)))
    return [(path, place) for _, path, place in sorted(known)]


def _folders_in(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and _may_have_runs(entry):
                yield folder / entry.name


def _may_have_runs(entry: "os.DirEntry[str]") -> bool:
    if entry.is_symlink():
        return is_ours(entry.stat(follow_symlinks=False)) and entry.is_dir()
    return entry.is_dir()
