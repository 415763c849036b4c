"""Rows of samples on disk: as many bytes as their layout takes, or `DamagedCheckpoint`, and nothing beyond the file."""

import numpy as np

from stream_server.errors import DamagedCheckpoint
from stream_server.storage.plain_state import from_bytes, to_bytes
from stream_server.storage.sample_file import SampleLayout, read_rows
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FILE = scratch.folder() / "samples.rows"
LAYOUT = SampleLayout(num_rows=3, fields=(("u", "<f8", (2,)), ("flag", "|b1", ()), ("c", "<c8", (1, 2))))


def run(data: bytes) -> None:
    """The first two bytes say how long the description of the layout is; the rows come behind it."""
    num = int.from_bytes(data[:2], "little")
    described, rows = data[2 : 2 + num], data[2 + num :]
    try:
        plain = from_bytes(described)
    except DamagedCheckpoint:
        plain = LAYOUT.to_plain()
    FILE.write_bytes(rows)
    try:
        layout = SampleLayout.from_plain(plain)
        chunks = [{name: it.copy() for name, it in values.items()} for _, values in read_rows(FILE, layout)]
    except DamagedCheckpoint:
        return
    written = b"".join(values[name].tobytes() for values in chunks for name, _, _ in layout.fields)
    assert written == rows
    assert sum(len(next(iter(values.values()), ())) for values in chunks) in (layout.num_rows, 0)


def _seed(layout: SampleLayout) -> bytes:
    described = to_bytes(layout.to_plain())
    return len(described).to_bytes(2, "little") + described + bytes(layout.num_rows * layout.row_bytes)


TARGET = Target(run=run, seeds=(_seed(LAYOUT), b"\0\0" + np.arange(11 * 9, dtype=np.uint8).tobytes()))
