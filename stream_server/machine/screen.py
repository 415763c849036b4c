"""Output of a command: escaped text, on a disk that may be full or to a reader that may leave."""

import errno
import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stream_server.errors import ConfigError
from stream_server.storage.disk import place_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# C0 and C1 without tab and end of line: what moves the cursor, changes colours or rings the bell. Further ends of
# lines, what makes text run the other way, and what stands for bytes of a name that are no letters.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
STDERR = 2
LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def escaped(text: str) -> str:
    """The text of a stranger, with what a terminal would obey written as `\\x1b`; tabs and ends of lines stay."""
    return CONTROL.sub(_code, text.replace("\r\n", "\n"))


def in_one_line(text: str) -> str:
    """The text of a stranger, escaped, its ends of lines too: it cannot look like the next line of a log or table."""
    return escaped(text).replace("\n", "\\n").replace("\t", " ")


def size_shown(num_bytes: float) -> str:
    """A number of bytes as people read it, in units of 1024: `1.6 KiB`, `23.5 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        num_bytes /= 1024
        # Values that would be rounded to 1,024.0 have the next unit.
        if num_bytes < 1023.95:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1024:,.1f} TiB"


def print_escaped(text: str, stream: TextIO | None = None) -> None:
    """Print text, escaped since a stranger's may be in it, to standard output by default."""
    print(escaped(text), file=stream, flush=True)


def write_escaped(text: str) -> None:
    """Write a line to standard error past all buffers, and past what a live display has put in its place.

    For the handlers of signals, which may have interrupted a write.
    """
    with suppress(OSError):
        os.write(STDERR, f"{escaped(text)}\n".encode())


def _code(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


class PlainFormatter(logging.Formatter):
    """Formats a record of a log, in which a stranger's text may stand, without control characters; times are UTC."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class LogFile(logging.FileHandler):
    """A log in UTF-8 that loses lines while the disk is full, and says so once, on the screen."""

    has_lost_lines = False

    def __init__(self, path: Path) -> None:
        super().__init__(place_of(path), encoding="utf-8", errors="backslashreplace")
        self._path = path

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (a name of logging)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.has_lost_lines:
            self.has_lost_lines = True
            print(f"WARNING: {self._path} loses lines: {error}", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class LossyFile(io.FileIO):
    """File that drops what a full disk does not take."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            return memoryview(data).nbytes


@contextmanager
def tolerate_full_disk() -> Iterator[None]:
    """Drop, within the block, what cannot be printed since a disk is full."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(on_screen, before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End the block without an error if the reader of its output, such as `head`, has closed the pipe.

    Raises:
        ConfigError: its output goes to a disk that does not take it.
    """
    try:
        yield
    except OSError as error:
        _finish_output()
        if not isinstance(error, BrokenPipeError):
            raise
    else:
        if (lost := _finish_output()) and not isinstance(lost, BrokenPipeError):
            raise ConfigError(f"the output cannot be written: {lost}. Make room for it, or write it elsewhere")


def _finish_output() -> OSError | None:
    """Flush what was printed; returns the error if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # The buffer is written when the interpreter ends, and must go somewhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return error
    return None


def on_screen(stream: TextIO) -> TextIO:
    """The same stream, which drops what a full disk does not take."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        # There is none, or what stands in its place keeps all it gets.
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LossyFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream is sys.stderr or stream.isatty(),
    )
