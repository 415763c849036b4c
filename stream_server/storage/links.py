"""Opening what a path leads to, through no link of somebody else, who chooses where it leads.

Each folder on the way is opened in the one before it, and the owner and the text of a link are read by one descriptor:
what was looked at is what is gone through, whatever takes its name meanwhile.

Why: docs/decisions/0069-held-folders-and-links.md
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stream_server.storage.ownership import is_ours, name_of

OPEN_FILES = "/proc/self/fd"
# As many as the system follows.
_MAX_LINKS = 40
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# An automatic mount takes place only where a folder is asked for.
_FOLDER = _ENTRY | os.O_DIRECTORY


def open_by_own_links(path: Path | str, flags: int, mode: int = 0o777) -> int:
    """Open a file or folder as `os.open` does, through links of this user and of root alone.

    Raises:
        PermissionError: a link on the way is somebody else's.
        OSError: it cannot be opened.
    """
    with end_of(path) as (folder, name, no_link):
        return os.open(name, flags | no_link | os.O_CLOEXEC, mode, dir_fd=folder)


@contextmanager
def end_of(path: Path | str) -> Iterator[tuple[int, str, int]]:
    """The folder in which a path ends behind all links, by its descriptor, and the name there, be it in use or free.

    The name must be opened with the flag that comes with it: somebody may put a link there meanwhile. An error in the
    block says the path.

    Raises:
        PermissionError: a link on the way is somebody else's.
        OSError: the folder cannot be opened.
    """
    path = os.fspath(path)
    walk = _Walk(path)
    try:
        no_link = walk.to_the_end()
        yield walk.folder, walk.name, no_link
    except OSError as error:
        if error.filename == walk.name:
            error.filename = path
        raise
    finally:
        os.close(walk.folder)


class _Walk:
    """A path as it is walked: the descriptor of the folder so far, what leads there, and the names that come then."""

    def __init__(self, path: str) -> None:
        self.name = ""
        self._num_links = 0
        self._names = _reversed(path)
        self._place = "/" if path.startswith("/") else os.getcwd()
        self.folder = os.open("/" if path.startswith("/") else ".", _FOLDER)

    def to_the_end(self) -> int:
        """Walk until `name` is the last one; returns the flag by which that must be opened."""
        while True:
            self.name = self._names.pop()
            if self._names:
                with suppress(NotADirectoryError):
                    self._enter(_FOLDER)
                    continue
            try:
                entry = os.open(self.name, _ENTRY, dir_fd=self.folder)
            except FileNotFoundError:
                if self._names:
                    raise
                return os.O_NOFOLLOW
            try:
                status = os.fstat(entry)
                if _leads_to_open_file(status):
                    if not self._names:
                        return 0
                    self._enter(_FOLDER & ~os.O_NOFOLLOW)
                elif stat.S_ISLNK(status.st_mode):
                    self._follow(status, os.readlink("", dir_fd=entry))
                elif not self._names:
                    return os.O_NOFOLLOW
                else:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.name)
            finally:
                os.close(entry)

    def _enter(self, flags: int) -> None:
        below = os.open(self.name, flags, dir_fd=self.folder)
        os.close(self.folder)
        self.folder, self._place = below, os.path.join(self._place, self.name)

    def _follow(self, status: os.stat_result, target: str) -> None:
        if not is_ours(status):
            raise PermissionError(
                errno.EPERM,
                f"It is a link of {name_of(status.st_uid)}, which is not followed: write what it leads to instead",
                os.path.join(self._place, self.name),
            )
        self._num_links += 1
        if self._num_links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.name)
        self._names += _reversed(target)
        if target.startswith("/"):
            self.name = "/"
            self._enter(_FOLDER)


def _reversed(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name] or ["."]


def _leads_to_open_file(status: os.stat_result) -> bool:
    """Whether this is a link of /proc, as /dev/stdout leads to one: its text need not be a path."""
    is_link = stat.S_ISLNK(status.st_mode)
    return is_link and os.path.isdir(OPEN_FILES) and status.st_dev == os.stat("/proc").st_dev
