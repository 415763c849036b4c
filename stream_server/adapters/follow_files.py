"""The folder that is followed: which files are of which time step, and which of them are finished."""

import glob
import os
import re
import stat
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from stream_server.errors import ConfigError

WILDCARD = re.compile(r"[*?\[]")
# A minus after a letter or a digit is a hyphen.
NUMBER = re.compile(r"(?:(?<![^\W_])-)?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WHEN_QUIET, WHEN_THERE = "quiet", "rename"

# Of every file that a time step consists of: size, time of the last change, and which file it is.
Signature = tuple[tuple[int, int, int], ...]


class StepFile(NamedTuple):
    """A file of one time step; `number` is the one in its name, an int if it is written as one."""

    number: float
    path: Path


class StepFiles:
    """The files that match a pattern, in the order of the numbers in their names.

    `finished_by` says when one is finished: "quiet" (nothing changed for `quiet_s`, or the next one is there), "rename"
    (as soon as it is there), or else the name of another file, in which `{}` stands for the whole name and `*` for what
    it stands for in the pattern. What is there already is not looked at before it changes, unless `earlier`.

    Raises:
        ConfigError: all files would have the same marker.
    """

    def __init__(self, pattern: str, *, finished_by: str, quiet_s: float, earlier: bool) -> None:
        # As the names of what it finds are written.
        self.pattern = pattern = str(Path(pattern))
        self.finished_by = finished_by
        if finished_by not in (WHEN_THERE, WHEN_QUIET) and not re.search(r"\{\}|\*", finished_by):
            raise ConfigError(
                f"--finished-by {finished_by} would be one marker for all files: expected quiet, rename, or a name "
                "with {} for the whole name of a file or * for what it stands for in the pattern, such as {}.done"
            )
        self._quiet_s = quiet_s
        self._head = len(WILDCARD.split(pattern)[0])
        self._tail = len(re.split(r"[*?\]]", pattern)[-1])
        self._last_change: dict[Path, tuple[Signature, float]] = {}
        self._before = {} if earlier else {path: signature(path) for path in map(Path, glob.glob(pattern))}

    def look(self) -> list[StepFile]:
        """All files of the solver's, finished or not.

        Raises:
            ConfigError: a file has no number, or two have the same.
        """
        found = [Path(path) for path in glob.glob(self.pattern)]
        if self._before:
            self._before = {path: it for path, it in self._before.items() if signature(path) == it}
        files = sorted(StepFile(self._number(path), path) for path in found if path not in self._before)
        for one, other in pairwise(files):
            # One that is renamed meanwhile may be found twice.
            if one.number == other.number and one.path.exists() and other.path.exists():
                raise two_of(other, one.path)
        return files

    def is_finished(self, path: Path, *, next_is_there: bool) -> bool:
        """Whether the solver will not write into this file any more, while it runs."""
        if self.finished_by == WHEN_THERE:
            return True
        if self.finished_by != WHEN_QUIET:
            return self.marker(path).exists()
        now, found = time.monotonic(), signature(path)
        if self._last_change.get(path, ((), 0.0))[0] != found:
            self._last_change[path] = found, now
        return next_is_there or (bool(found) and now - self._last_change[path][1] >= self._quiet_s)

    def marker(self, path: Path) -> Path:
        """The file that says that this one is finished."""
        return Path(self.finished_by.replace("*", self._star(path)).replace("{}", str(path)))

    def why_unfinished(self, path: Path) -> str:
        """The end of a message about a file that is not taken for finished."""
        if self.finished_by in (WHEN_THERE, WHEN_QUIET):
            return "somebody still writes into it"
        return f"there is no {self.marker(path)}, which --finished-by waits for"

    def remove(self, path: Path) -> None:
        """Delete the file, and what belongs to it."""
        for each in _parts(path):
            with suppress(FileNotFoundError):
                each.unlink()
        if path.is_dir():
            path.rmdir()
        if self.finished_by not in (WHEN_THERE, WHEN_QUIET):
            self.marker(path).unlink(missing_ok=True)

    def neighbours(self) -> str:
        """Some names of what lies where the pattern looks, for a message."""
        folder = Path(self.pattern).parent
        if WILDCARD.search(str(folder)) or not folder.is_dir():
            return f"there is no folder {folder}"
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
        return (
            f"{folder.resolve()} has {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            if names
            else (f"{folder.resolve()} is empty")
        )

    def _star(self, path: Path) -> str:
        name = str(path)
        return name[self._head : len(name) - self._tail]

    def _number(self, path: Path) -> float:
        numbers = NUMBER.findall(name := str(path), self._head, len(name) - self._tail)
        if not numbers:
            raise ConfigError(
                f"{path} matches {self.pattern!r}, and has no number there: expected that of a time step, as in "
                "step_0010.vtk. Write a pattern that matches the files of the time steps alone"
            )
        last = numbers[-1]
        return int(last) if last.lstrip("-").isdigit() else float(last)


def two_of(file: StepFile, other: Path) -> ConfigError:
    """What to raise when the number of this file is that of another one, too."""
    return ConfigError(
        f"{other} and {file.path} are both files of {file.number}: expected one file for each time step. Write a "
        "pattern that matches one of them"
    )


def _parts(path: Path) -> list[Path]:
    """The files that one time step consists of; XDMF has its numbers in another one."""
    if path.is_dir():
        return [each for each in path.rglob("*") if each.is_file()]
    beside = path.with_suffix(".h5")
    return [path, beside] if path.suffix == ".xdmf" and beside.exists() else [path]


def signature(path: Path) -> Signature:
    """What differs once a file is written to; () if it is not there."""
    try:
        one = os.stat(path)
        if path.suffix != ".xdmf" and not stat.S_ISDIR(one.st_mode):
            return ((one.st_size, one.st_mtime_ns, one.st_ino),)
        found = [os.stat(each) for each in _parts(path)]
    except OSError:
        return ()
    return tuple((it.st_size, it.st_mtime_ns, it.st_ino) for it in found)
