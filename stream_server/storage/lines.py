"""Files that grow by lines. A line is on disk once it was appended; a crash tears the last one at most."""

import errno
from pathlib import Path

from stream_server.storage import disk

SECTOR_BYTES = 512


class LineFile:
    """A file to which one writer appends lines. `open` it, `append`, `close` it; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._is_whole = False

    def open(self) -> None:
        """Open the file, which is made unless it is there; only its owner may read it.

        Raises:
            OSError: it cannot be opened.
        """
        self.descriptor = disk.open_private_to_append(self.path)

    def read(self) -> bytes:
        """All whole lines; later ones follow them.

        Raises:
            OSError: it cannot be read.
        """
        content = whole_lines(disk.read_file(self.path))
        self._size = len(content)
        return content

    def take_over(self) -> bytes:
        """Continue in a copy, which takes the place of the file; returns all whole lines.

        A process that has the old file open, such as one that was stopped and wakes up, appends nothing any more.

        Raises:
            OSError: it cannot be read or written.
        """
        old, content = self.descriptor, self.read()
        disk.replace_file(self.path, content)
        # Others may know what the other process has appended before that moment.
        if (newest := whole_lines(disk.read_descriptor(old))) != content:
            disk.replace_file(self.path, newest)
        self.open()
        disk.close(old)
        return self.read()

    def append(self, line: bytes) -> None:
        """Put a line on disk.

        Raises:
            OSError: it is not there, and the file is as it was before; or another process has taken over.
        """
        if not self._is_whole:
            self._make_whole()
        self._is_whole = False
        try:
            disk.write_all(self.descriptor, memoryview(line))
            disk.sync(self.descriptor)
        except OSError:
            self._make_whole()
            raise
        self._size += len(line)
        self._is_whole = True
        if not disk.has_name(self.descriptor):
            raise OSError(errno.ESTALE, "Another process goes on with it", str(self.path))

    def close(self) -> None:
        disk.close(self.descriptor)

    def _make_whole(self) -> None:
        """Put on disk that the file is there, and ends with the last line that was appended.

        The next one must not be joined to a torn one, nor be lost together with the name of the file.
        """
        disk.truncate(self.descriptor, self._size)
        disk.sync(self.descriptor)
        disk.sync_folder(self.path.parent)
        self._is_whole = True


def whole_lines(content: bytes) -> bytes:
    """The content of such a file without a last line that was never written to its end.

    That one may have an end all the same: a power failure can leave zeros in place of any sector of it.
    """
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    is_torn = content.startswith(b"\0", start, end) or bytes(SECTOR_BYTES) in content[start:end]
    return content[: start if is_torn else end]
