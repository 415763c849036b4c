"""What a command prints, where that goes into a file on a disk that may be full."""

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Screen(io.FileIO):
    """A file that loses what the disk does not take, and goes on with the next that it does."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            return memoryview(data).nbytes


@contextmanager
def outliving_a_full_disk() -> Iterator[None]:
    """Within the block no line that cannot be printed ends anything."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_on_screen, before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        sys.stdout, sys.stderr = before


def _on_screen(stream: TextIO) -> TextIO:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        # There is none, or what stands in its place keeps all it gets.
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Screen(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream is sys.stderr or stream.isatty(),
    )
