"""Addresses of sockets in the file system: whose folder they are in, and paths that nobody else can redirect.

Why: docs/decisions/0074-who-is-the-server.md
"""

import errno
import os
from pathlib import Path

from stream_server.storage.ownership import OTHERS, is_ours

PREFIX = "ipc://"
# A path below a device: nobody can ever make it.
UNREACHABLE = "ipc:///dev/null/gone"


def open_folder(address: str) -> int:
    """Open the folder of an ipc address, which belongs to this user (or root), is closed to all others, and no link.

    Raises:
        OSError: it is not there, or none of that.
    """
    folder = Path(address.removeprefix(PREFIX)).parent
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if is_ours(status) and not status.st_mode & OTHERS:
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "It is not ours alone", str(folder))


class PrivateIpcPaths:
    """Gives paths to sockets in private folders, and keeps these open. Any thread, one at a time.

    ZeroMQ connects again by itself, for as long as its socket lives. Should the folder be removed meanwhile, as by a
    cleaner of /tmp, and another user make one of its name, the socket would connect to that user's folder. So
    ZeroMQ is given a path that leads through our descriptor of the folder: to that one or to nothing.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, int] = {}

    def to(self, address: str, *, must_exist: bool = True) -> str | None:
        """The address to connect to; None unless its folder is ours, with a socket there if one `must_exist`."""
        path = Path(address.removeprefix(PREFIX))
        try:
            if path.parent not in self._folders:
                self._folders[path.parent] = open_folder(address)
            held_path = f"/proc/self/fd/{self._folders[path.parent]}/{path.name}"
            if must_exist:
                os.lstat(held_path)
        except OSError:
            return None
        return f"{PREFIX}{held_path}"

    def connectable(self, address: str) -> str:
        """An address to connect to, where nobody but the server can ever listen."""
        if not address.startswith(PREFIX):
            return address
        return self.to(address, must_exist=False) or UNREACHABLE

    def close(self) -> None:
        """Let go of the folders, once no socket leads there any more."""
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()
