"""Rows of samples in a file: chunk after chunk, and in each chunk field after field.

So a writer that reads the rows from where they live is done with some of them long before it is done with all.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import DamagedCheckpoint
from stream_server.ragged import array_of
from stream_server.storage.disk import open_regular, place_of, read_into
from stream_server.storage.plain_state import Writable, parse_dtype

CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleLayout:
    """The layout of the rows in a file: `fields` are name, dtype and shape of each.

    Of a ragged field the shape is the largest, and `lengths` has the length of the first axis in every row.
    """

    num_rows: int
    fields: tuple[tuple[str, str, tuple[int, ...]], ...]
    lengths: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "SampleLayout":
        """Read back what `to_plain` gave.

        Raises:
            DamagedCheckpoint: it is something else.
        """
        try:
            fields = tuple((name, dtype, tuple(shape)) for name, dtype, shape in plain["fields"])
            layout = cls(num_rows=plain["num_rows"], fields=fields, lengths=dict(plain.get("lengths", {})))
            is_sound = layout._is_sound
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(f"not a layout of samples: {error!r}"[:200]) from error
        if not is_sound:
            raise DamagedCheckpoint(f"not a layout of samples: {plain}"[:200])
        return layout

    def to_plain(self) -> dict[str, Any]:
        fields = [[name, dtype, list(shape)] for name, dtype, shape in self.fields]
        return {"num_rows": self.num_rows, "fields": fields, "lengths": dict(self.lengths)}

    @property
    def row_bytes(self) -> int:
        """The bytes of the largest row that there may be."""
        return sum(np.dtype(dtype).itemsize * prod(shape) for _, dtype, shape in self.fields)

    def num_bytes(self, rows: range) -> int:
        """The bytes of some rows."""
        total = 0
        for name, dtype, shape in self.fields:
            num = len(rows) * prod(shape)
            if name in self.lengths:
                num = int(self.lengths[name][rows.start : rows.stop].sum()) * prod(shape[1:])
            total += num * np.dtype(dtype).itemsize
        return total

    @property
    def _is_sound(self) -> bool:
        counts = [self.num_rows, *(extent for _, _, shape in self.fields for extent in shape)]
        are_counts = all(type(count) is int and count >= 0 for count in counts)
        are_known = all(type(name) is str and parse_dtype(dtype).itemsize for name, dtype, _ in self.fields)
        largest = {name: shape[0] for name, _, shape in self.fields if shape}
        are_lengths = all(
            lengths.dtype == np.int64
            and lengths.shape == (self.num_rows,)
            and bool(np.all((lengths >= 0) & (lengths <= largest[name])))
            for name, lengths in self.lengths.items()
        )
        # Any number of rows of nothing would fit into an empty file.
        return are_counts and are_known and are_lengths and (self.row_bytes > 0 or self.num_rows == 0)

    def chunks(self) -> Iterator[range]:
        """The rows of each chunk."""
        size = max(1, CHUNK_BYTES // max(1, self.row_bytes))
        return (range(start, min(start + size, self.num_rows)) for start in range(0, self.num_rows, size))


def write_rows(file: Writable, layout: SampleLayout, rows: Callable[[str, int, int], NDArray[Any]]) -> Iterator[range]:
    """Write what `rows(field, start, stop)` gives, and yield the rows of every chunk once they are written.

    Of a ragged field these are arrays, of the layout's lengths.
    """
    for chunk in layout.chunks():
        for name, dtype, shape in layout.fields:
            values = rows(name, chunk.start, chunk.stop)
            if name in layout.lengths:
                assert [len(value) for value in values] == layout.lengths[name][chunk.start : chunk.stop].tolist()
                values = np.concatenate([np.zeros((0, *shape[1:]), dtype), *values])
            else:
                assert values.shape == (len(chunk), *shape)
            file.write(np.ascontiguousarray(values, dtype).data)
        yield chunk


def read_rows(path: Path, layout: SampleLayout) -> Iterator[tuple[range, dict[str, NDArray[Any]]]]:
    """The rows of every chunk and their values by field, valid until the next chunk is asked for.

    A ragged field is an array of arrays.

    Raises:
        DamagedCheckpoint: the file is too short or too long.
    """
    expected = layout.num_bytes(range(layout.num_rows))
    num_bytes = os.stat(place_of(path)).st_size
    if num_bytes != expected:
        raise DamagedCheckpoint(f"{path} must have {expected} bytes for {layout.num_rows} samples, but has {num_bytes}")
    memory = bytearray(min(expected, max(CHUNK_BYTES, layout.row_bytes)))
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        for chunk in layout.chunks():
            size = layout.num_bytes(chunk)
            if not read_into(file, memoryview(memory)[:size]):
                raise DamagedCheckpoint(f"{path} has become shorter while it was read")
            values, at = {}, 0
            for name, dtype, shape in layout.fields:
                ends = np.cumsum(layout.lengths[name][chunk.start : chunk.stop]) if name in layout.lengths else None
                whole = (len(chunk), *shape) if ends is None else (int(ends[-1]), *shape[1:])
                packed = np.frombuffer(memory, dtype, prod(whole), at).reshape(whole)
                values[name] = packed if ends is None else array_of(np.split(packed, ends[:-1]))
                at += packed.nbytes
            yield chunk, values
