"""A CSV file of parameters: a design that is written alike again, or `ValueError` in words."""

import math

from stream_server.config.parameters import DesignFile
from stream_server.server.simulations.design import write_csv
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
FILE, AGAIN = FOLDER / "design.csv", FOLDER / "again.csv"


def run(data: bytes) -> None:
    """Read the file, and write what was read."""
    FILE.write_bytes(data)
    try:
        design = DesignFile.read(FILE)
    except ValueError:
        return
    assert all(len(row) == len(design.names) and all(map(math.isfinite, row)) for row in design.rows)
    if design.rows:
        write_csv(AGAIN, {i: dict(zip(design.names, row, strict=True)) for i, row in enumerate(design.rows)})
        assert DesignFile.read(AGAIN) == design


TARGET = Target(
    run=run,
    seeds=(
        b"left,right\n1.5,2\n-3e-7,4\n",
        b"simulation,left\n0,1\n1,2\n",
        b'\xef\xbb\xbf"left", right\r\n"1",2\r\n\r\n3,4',
        b"simulation\n0\n1\n",
    ),
)
