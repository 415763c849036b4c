"""A file that a library writes through, and that gets its name once it is whole and on disk."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from stream_server.storage import disk


class LibraryFile:
    """A new file at `path`, as a binary file that a library may write anywhere; for a `with` block.

    HDF5 crashes the process when a file cannot be closed, as on a full disk. So no write fails: the first error is
    kept in `error`, and what comes after it goes nowhere. Leaving the block raises it; only a file without one, and
    without an exception in the block, takes its place at `path`. Until then it has another name, which no other
    process uses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self._temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
        self._file = -1
        self._position = 0

    def __enter__(self) -> Self:
        self._file = disk.create(self._temporary)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if self.error is not None:
                raise self.error
            if error is None:
                disk.sync(self._file)
                disk.rename_file(self._temporary, self.path)
        finally:
            disk.close(self._file)
            disk.remove_file(self._temporary)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, from which the next call goes on."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._file).st_size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The place at which the next call goes on."""
        return self._position

    def read(self, size: int) -> bytes:
        """So many bytes; behind the end of the file, zeros."""
        data = os.pread(self._file, size, self._position)
        self._position += size
        return data.ljust(size, b"\0")

    def readinto(self, memory: memoryview) -> int:
        """Fill memory as `read` does."""
        memory[:] = self.read(len(memory))
        return len(memory)

    def write(self, data: memoryview) -> int:
        """Write all of it, or keep the error."""
        try:
            if self.error is None:
                disk.write_at(self._file, memoryview(data), self._position)
        except OSError as error:
            self.error = error
        self._position += len(data)
        return len(data)

    def truncate(self, size: int) -> int:
        """Give the file this size, or keep the error."""
        try:
            if self.error is None:
                disk.truncate(self._file, size)
        except OSError as error:
            self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""
