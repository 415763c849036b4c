"""Rows of samples in a file, chunk by chunk."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_server.errors import DamagedCheckpoint
from stream_server.storage import sample_file
from stream_server.storage.plain_state import from_bytes, to_bytes
from stream_server.storage.sample_file import SampleLayout, read_rows, write_rows

Arrays = dict[str, NDArray[Any]]


def rows_of(num: int) -> Arrays:
    """Rows of 45 bytes: a scalar, a matrix that is written from every other column, and an array of odd size."""
    generator = np.random.default_rng(num)
    return {
        "x": generator.random(num),
        "u": generator.integers(0, 99, (num, 2, 8)).astype(np.float32)[:, :, ::2],
        "flags": generator.integers(0, 2, (num, 5)).astype(bool),
    }


def layout_of(arrays: Mapping[str, NDArray[Any]], num: int) -> SampleLayout:
    fields = tuple((name, array.dtype.str, array.shape[1:]) for name, array in arrays.items())
    return SampleLayout(num_rows=num, fields=fields)


def write(path: Path, arrays: Mapping[str, NDArray[Any]], num: int) -> tuple[SampleLayout, list[range]]:
    layout = layout_of(arrays, num)
    with path.open("wb") as file:
        chunks = [*write_rows(file, layout, lambda name, start, stop: arrays[name][start:stop])]
    return layout, chunks


def read(path: Path, layout: SampleLayout) -> Arrays:
    found = {name: np.empty((layout.num_rows, *shape), dtype) for name, dtype, shape in layout.fields}
    for rows, values in read_rows(path, layout):
        for name, array in found.items():
            array[rows.start : rows.stop] = values[name]
    return found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three rows."""
    monkeypatch.setattr(sample_file, "CHUNK_BYTES", 3 * 45)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("num", [0, 1, 2, 3, 4, 6, 10])
def test_rows_come_back_as_they_were_whatever_their_number(num: int, tmp_path: Path) -> None:
    arrays = rows_of(num)
    layout, chunks = write(tmp_path / "rows", arrays, num)
    assert layout.row_bytes == 45
    assert (tmp_path / "rows").stat().st_size == 45 * num
    assert [row for chunk in chunks for row in chunk] == list(range(num))
    for name, array in read(tmp_path / "rows", layout).items():
        np.testing.assert_array_equal(array, arrays[name], strict=True)


def test_rows_of_a_field_that_differs_in_size_take_what_each_of_them_has() -> None:
    layout = SampleLayout(
        num_rows=3, fields=(("mesh", "<f4", (10, 3, 2)), ("time", "<f8", ())), lengths={"mesh": np.array([4, 10, 0])}
    )
    assert [layout.num_bytes(range(row, row + 1)) for row in range(3)] == [4 * 24 + 8, 10 * 24 + 8, 8]
    assert layout.num_bytes(range(3)) == 14 * 24 + 3 * 8


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_is_told_only_when_all_of_its_rows_are_written() -> None:
    arrays, file = rows_of(7), io.BytesIO()
    layout = layout_of(arrays, 7)
    for chunk in write_rows(file, layout, lambda name, start, stop: arrays[name][start:stop]):
        assert file.tell() == 45 * chunk.stop


def test_rows_larger_than_a_chunk_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_file, "CHUNK_BYTES", 10)
    arrays = rows_of(3)
    layout, chunks = write(tmp_path / "rows", arrays, 3)
    assert [len(chunk) for chunk in chunks] == [1, 1, 1]
    np.testing.assert_array_equal(read(tmp_path / "rows", layout)["u"], arrays["u"])


def test_rows_of_another_byte_order_are_written_as_the_layout_says(tmp_path: Path) -> None:
    layout = SampleLayout(num_rows=2, fields=(("x", "<f8", ()),))
    with (tmp_path / "rows").open("wb") as file:
        [*write_rows(file, layout, lambda name, start, stop: np.array([1.0, 2.0], ">f8"))]
    assert (tmp_path / "rows").read_bytes() == np.array([1.0, 2.0], "<f8").tobytes()


@given(
    st.integers(0, 2**40),
    st.lists(
        st.tuples(st.text(max_size=5), st.sampled_from(["<f8", "|b1", "<i2"]), st.lists(st.integers(1, 9))),
        min_size=1,
    ),
)
def test_a_layout_survives_being_written(num: int, fields: list[tuple[str, str, list[int]]]) -> None:
    layout = SampleLayout(num_rows=num, fields=tuple((name, dtype, tuple(shape)) for name, dtype, shape in fields))
    assert SampleLayout.from_plain(from_bytes(to_bytes(layout.to_plain()))) == layout


@pytest.mark.parametrize("num", [0, 44, 46, 89, 91, 450])
def test_a_file_of_another_size_is_damaged(num: int, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(num))
    layout = layout_of(rows_of(2), 2)
    with pytest.raises(DamagedCheckpoint, match=rf"rows must have 90 bytes for 2 samples, but has {num}"):
        read(tmp_path / "rows", layout)


def test_a_file_that_must_be_empty_is_damaged_if_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"x")
    with pytest.raises(DamagedCheckpoint, match="must have 0 bytes"):
        read(tmp_path / "rows", SampleLayout(num_rows=0, fields=()))


@pytest.mark.usefixtures("small_chunks")
def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    layout, _ = write(tmp_path / "rows", rows_of(7), 7)
    chunks = read_rows(tmp_path / "rows", layout)
    next(chunks)
    with (tmp_path / "rows").open("r+b") as file:
        file.truncate(4 * 45)
    with pytest.raises(DamagedCheckpoint, match="has become shorter"):
        next(chunks)
    chunks.close()
