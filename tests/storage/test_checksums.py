"""Checksums of files while they are written, and of small JSON objects."""

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from stream_server.errors import DamagedCheckpoint
from stream_server.storage.checksums import (
    CHUNK_BYTES,
    GATHERED_BYTES,
    ChecksumFile,
    FileRecord,
    check_sum,
    checksummed_json,
    parse_checksummed_json,
    record_of,
    write_sums,
)
from stream_server.storage.disk import replace_file


def written(path: Path, *pieces: object) -> FileRecord:
    with ChecksumFile(path) as file:
        for piece in pieces:
            file.write(piece)
        return file.close()


def test_small_and_large_pieces_follow_each_other(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    sizes = [3, 0, 70_000, 5, 2 * CHUNK_BYTES + 1, 1, 1, 65_536, 40_000, 40_000]
    pieces = [generator.bytes(size) for size in sizes] + [b"abcdefgh" * 1000] * 200
    record = written(tmp_path / "file", *pieces)
    data = b"".join(pieces)
    assert (tmp_path / "file").read_bytes() == data
    assert record == FileRecord(num_bytes=len(data), xxh3=xxhash.xxh3_128_hexdigest(data))
    assert record_of(tmp_path / "file") == record


@pytest.mark.parametrize("size", [0, 1, 2, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_the_record_of_a_file_of_any_size_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    assert record_of(tmp_path / "file") == FileRecord(num_bytes=size, xxh3=xxhash.xxh3_128_hexdigest(data[:size]))


def test_small_pieces_are_not_kept_in_memory_until_the_end(tmp_path: Path) -> None:
    with ChecksumFile(tmp_path / "file") as file:
        for _ in range(2 * GATHERED_BYTES // 1000):
            file.write(bytes(1000))
        assert (tmp_path / "file").stat().st_size >= GATHERED_BYTES


def test_a_file_that_its_sha256sums_names_must_match_it(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    (tmp_path / "other").write_bytes(b"anything")
    check_sum(tmp_path / "model")
    write_sums(tmp_path)
    check_sum(tmp_path / "model")
    (tmp_path / "model").write_bytes(b"weighty")
    with pytest.raises(DamagedCheckpoint, match="not as it was written"):
        check_sum(tmp_path / "model")
    check_sum(tmp_path / "other")
    (tmp_path / "later").write_bytes(b"it is not named there")
    check_sum(tmp_path / "later")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (4, 5)])
def test_arrays_are_written_as_their_bytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1.5)
    assert written(tmp_path / "file", array).num_bytes == array.nbytes
    assert (tmp_path / "file").read_bytes() == array.tobytes()


def test_an_array_that_is_not_contiguous_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        written(tmp_path / "file", np.zeros((4, 4))[:, 1])


def test_what_was_written_may_change_at_once(tmp_path: Path) -> None:
    row = np.zeros(10, np.uint8)
    with ChecksumFile(tmp_path / "file") as file:
        file.write(row)
        row[:] = 1
        record = file.close()
    assert (tmp_path / "file").read_bytes() == bytes(10)
    assert record_of(tmp_path / "file") == record


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    written(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        ChecksumFile(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"first"


def test_before_chunk_may_end_the_writing(tmp_path: Path) -> None:
    num = 0

    def stop() -> None:
        nonlocal num
        num += 1
        if num == 3:
            raise InterruptedError

    with ChecksumFile(tmp_path / "file", before_chunk=stop) as file, pytest.raises(InterruptedError):
        file.write(bytes(10 * CHUNK_BYTES))
    assert (tmp_path / "file").stat().st_size == 2 * CHUNK_BYTES


def test_it_is_synced_before_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sizes.append(os.fstat(file).st_size), sync(file)))
    written(tmp_path / "file", b"abc")
    assert sizes == [3]


def test_a_small_file_is_replaced_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small"
    replace_file(path, b"first")
    replace_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o644

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"third")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("indent", [2, None])
def test_a_json_object_comes_back_only_if_every_byte_of_it_is_as_it_was(indent: int | None) -> None:
    plain = {"text": 'a "b" ü', "numbers": [1, 2.5, None, True], "nested": {"empty": {}}}
    data = checksummed_json(plain, indent=indent)
    assert parse_checksummed_json(data) == plain
    assert (data.count(b"\n") == 1) == (indent is None)
    for place in range(len(data)):
        with pytest.raises(ValueError, match="checksum"):
            parse_checksummed_json(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    for other in (data[:-1], data + b" ", b"", b"[]", b"{}\n", b"[" * 100_000):
        with pytest.raises(ValueError, match="checksum"):
            parse_checksummed_json(other)
