"""The connection file as it is now: a server that was started again is elsewhere, and its file says where."""

import math
import os
import time
from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.messages.connection import ConnectionFile, find

LOOK_S = 0.5


class ConnectionWatch:
    """Looks at the connection file from time to time. `file` is the newest that it saw.

    Without a `path` there is nothing to look at: the caller brought the content along. Unless it `heeds_touches`, it
    takes no notice of a launcher that says that the next server will come.
    """

    def __init__(self, file: ConnectionFile, path: str | os.PathLike[str] | None = None) -> None:
        self.file = file
        self.heeds_touches = True
        # The solver may change its folder.
        self._path = None if path is None else Path(path).absolute()
        self._next_look = time.monotonic() + LOOK_S
        self._read_state: tuple[int, int, int] | None = None
        self._is_touched = False

    @property
    def may_change(self) -> bool:
        """Whether the server can be found again after a restart."""
        return self._path is not None

    @property
    def slice_s(self) -> float:
        """Time until the file must be looked at again."""
        return math.inf if self._path is None else max(0.0, self._next_look - time.monotonic())

    def newer_than(self, incarnation: int, *, look_now: bool = False) -> bool:
        """Whether the file is of a later incarnation; it is looked at every LOOK_S at most, unless it must be now."""
        if self._path is not None and (look_now or time.monotonic() >= self._next_look):
            self._next_look = time.monotonic() + LOOK_S
            self._look()
        return self.file.incarnation > incarnation

    def was_touched(self) -> bool:
        """Whether the launcher has touched the file since the last call: the next server will come."""
        touched, self._is_touched = self._is_touched, False
        return touched and self.heeds_touches

    def _look(self) -> None:
        assert self._path is not None
        try:
            stat = os.stat(self._path)
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if state == self._read_state:
                return
            file = ConnectionFile.read(self._path)
        except (OSError, ConfigError):
            # Gone, or no connection file, at this moment: the next look tells.
            return
        self._is_touched, self._read_state = self._read_state is not None, state
        if file.incarnation > self.file.incarnation:
            self.file = file


def watch(connection: str | os.PathLike[str] | ConnectionFile | None) -> ConnectionWatch | None:
    """Watch the connection file that the caller names, or else the environment; None to run alone.

    Raises:
        ConfigError: neither names one, or the file cannot be read.
    """
    if isinstance(connection, ConnectionFile):
        return ConnectionWatch(connection)
    path = find(connection)
    return None if path is None else ConnectionWatch(ConnectionFile.read(path), path)
