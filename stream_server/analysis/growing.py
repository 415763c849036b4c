"""A file of lines that another process writes, read as it grows."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from stream_server.storage.disk import UnusableFile, by_own_links

MAX_FOLLOWED_BYTES = 128 << 20
# No line of a study is as long.
PIECE_BYTES = 16 << 20

T = TypeVar("T")


class GrowingFile(Generic[T]):
    """The items in the whole lines of a file so far: only what is new is read.

    A server that is started again takes out of its files what it does again, and a new run begins them again: then the
    file is another one, is shorter, or has other bytes before the position, and is read from its beginning.
    `parse` takes whole lines and the number of the first of them. A file of more than MAX_FOLLOWED_BYTES is not
    followed: what has been read of it is kept.
    """

    def __init__(self, path: Path, parse: Callable[[bytes, int], list[T]]) -> None:
        self.path = path
        self._parse = parse
        self.num_resets = -1
        self._start_over(0)

    def update(self) -> None:
        """Bring `items` up to date; `num_resets` grows when they were read from the beginning again.

        Raises:
            UnusableFile: the file, or a line of it, is larger than what a study writes.
            Exception: what `parse` raises of the new lines, at every update until they are corrected.
        """
        try:
            with open(self.path, "rb", opener=by_own_links) as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self._position - len(self._last))
                if inode != self._inode or file.read(len(self._last)) != self._last:
                    self._start_over(inode)
                    file.seek(0)
                while new := file.read(PIECE_BYTES):
                    if self._position + len(new) > MAX_FOLLOWED_BYTES:
                        raise self._too_large(f"more than {MAX_FOLLOWED_BYTES:,} bytes")
                    if not (whole := new[: new.rfind(b"\n") + 1]):
                        if len(new) == PIECE_BYTES:
                            raise self._too_large(f"a line of more than {PIECE_BYTES:,} bytes")
                        break
                    self._take(whole)
                    file.seek(self._position)
        except (FileNotFoundError, PermissionError):
            if self._inode:
                self._start_over(0)

    def _take(self, whole: bytes) -> None:
        self.items += self._parse(whole, self._num_lines + 1)
        self._position += len(whole)
        self._num_lines += whole.count(b"\n")
        self._last = whole[whole.rfind(b"\n", 0, -1) + 1 :]

    def _too_large(self, found: str) -> UnusableFile:
        return UnusableFile(errno.EFBIG, f"It has {found}", str(self.path))

    def _start_over(self, inode: int) -> None:
        # Not emptied: others may still look at the list.
        self.items: list[T] = []
        self.num_resets += 1
        self._inode = inode
        self._position = 0
        self._num_lines = 0
        self._last = b""
