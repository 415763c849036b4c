"""Checksums: of files while they are written and when they are read back, and of small JSON objects."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import xxhash

from stream_server.errors import DamagedCheckpoint
from stream_server.storage import disk

CHUNK_BYTES = 4 << 20
GATHERED_BYTES = 1 << 20
SMALL_BYTES = 64 << 10
WRITE_BACK_BYTES = 16 << 20
SUMS_FILE = "SHA256SUMS"

_CHECKSUM = "xxh3"
_XXH3 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """Size and xxh3_128 checksum of a file."""

    num_bytes: int
    xxh3: str

    def to_json(self) -> list[Any]:
        return [self.num_bytes, self.xxh3]

    @classmethod
    def from_json(cls, plain: Any) -> "FileRecord":
        """Read back what `to_json` gave.

        Raises:
            DamagedCheckpoint: it is something else.
        """
        match plain:
            case [int(num_bytes), str(xxh3)] if num_bytes >= 0 and type(num_bytes) is int and _XXH3.fullmatch(xxh3):
                return cls(num_bytes=num_bytes, xxh3=xxh3)
        raise DamagedCheckpoint(f"a file's record must be its size and checksum, but is {str(plain)[:80]}")


class ChecksumFile:
    """A new file, on disk once `close` has returned. A context manager; for one thread at a time.

    A buffer that `write` was given may change as soon as it returns. Hashing and writing release the interpreter lock.
    """

    def __init__(self, path: Path, *, before_chunk: Callable[[], None] = lambda: None) -> None:
        """Create the file; `before_chunk` is called before each chunk of 4 MiB, and may raise to end the writing.

        Raises:
            FileExistsError: `path` exists.
        """
        self.num_bytes = 0
        self._before_chunk = before_chunk
        self._hash = xxhash.xxh3_128()
        self._gathered = bytearray()
        self._num_pushed = 0
        self._file = disk.create(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the descriptor; without `close` before, the content of the file is undefined."""
        if self._file >= 0:
            file, self._file = self._file, -1
            disk.close(file)

    def write(self, data: Any, /) -> None:
        """Append the bytes of a contiguous buffer; those below 64 KiB are gathered before they are written.

        Raises:
            OSError: the disk is full or fails; the file must be given up.
        """
        view = memoryview(data)
        if not view.nbytes:
            return
        view = view.cast("B")
        self.num_bytes += view.nbytes
        if view.nbytes < SMALL_BYTES:
            self._gathered += view
            if len(self._gathered) >= GATHERED_BYTES:
                self._flush()
            return
        self._flush()
        for start in range(0, view.nbytes, CHUNK_BYTES):
            self._write_chunk(view[start : start + CHUNK_BYTES])

    def close(self) -> FileRecord:
        """Sync the file and close it; returns its size and checksum.

        Raises:
            OSError: it is not on disk. A second `fsync` could succeed all the same, so the file must be given up.
        """
        self._flush()
        disk.sync(self._file)
        file, self._file = self._file, -1
        disk.close(file)
        return FileRecord(num_bytes=self.num_bytes, xxh3=self._hash.hexdigest())

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._write_chunk(memoryview(gathered))

    def _write_chunk(self, chunk: memoryview) -> None:
        self._before_chunk()
        self._hash.update(chunk)
        disk.write_all(self._file, chunk)
        self._push(self.num_bytes - len(self._gathered))

    def _push(self, num_written: int) -> None:
        """Let the kernel start to write back, rather than at the end all at once: 1.5 times as fast here.

        It also drops pages that are on disk: nobody reads them before a restart.
        """
        if num_written - self._num_pushed >= WRITE_BACK_BYTES:
            disk.start_write_back(self._file, self._num_pushed, num_written - self._num_pushed)
            self._num_pushed = num_written


def record_of(path: Path) -> FileRecord:
    """Size and checksum of a file as it is now.

    Raises:
        OSError: it cannot be read.
    """
    checksum = xxhash.xxh3_128()
    num_bytes = 0
    with open(path, "rb", buffering=0, opener=disk.open_regular) as file:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, os.fstat(file.fileno()).st_size + 1)))
        while num := file.readinto(buffer):
            checksum.update(buffer[:num])
            num_bytes += num
    return FileRecord(num_bytes=num_bytes, xxh3=checksum.hexdigest())


def checksummed_json(plain: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """Encode a JSON object whose last entry, "xxh3", is the checksum of the others.

    With `indent=None` it is one line, as for a log of such objects.
    """
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(plain, indent=indent).encode())
    return (json.dumps({**plain, _CHECKSUM: checksum}, indent=indent) + "\n").encode()


def parse_checksummed_json(data: bytes) -> dict[str, Any]:
    """Decode what `checksummed_json` gave, without the checksum.

    Raises:
        ValueError: a byte of it is another.
    """
    try:
        plain: dict[str, Any] = json.loads(data)
        del plain[_CHECKSUM]
        is_whole = checksummed_json(plain, indent=2 if data.startswith(b"{\n") else None) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"it does not end with its checksum: {error}") from error
    if not is_whole:
        raise ValueError("it does not match its own checksum")
    return plain


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS, for `sha256sum --check`, about all files of a folder; it is on disk when this returns.

    Raises:
        OSError: the disk is full or fails.
    """
    lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(map(folder.joinpath, disk.names_in(folder)))]
    disk.write_file(folder / SUMS_FILE, "".join(lines).encode())


def check_sum(path: Path) -> None:
    """Check a file against the SHA256SUMS beside it, if that is there and names the file.

    Raises:
        DamagedCheckpoint: they differ, or one of both cannot be read.
    """
    sums = path.with_name(SUMS_FILE)
    try:
        lines = disk.read_text(sums, errors="replace").splitlines() if sums.exists() else []
        expected = [line.split()[0] for line in lines if line.split()[1:] == [path.name]]
        if expected and expected != [_sha256(path)]:
            raise DamagedCheckpoint(f"{path} is not as it was written: it does not match {sums}")
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be checked: {error}") from error


def _sha256(path: Path) -> str:
    with open(path, "rb", opener=disk.open_regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
