"""Studies whose wall clock jumps on the way."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.needs import need

SOURCE = Path(__file__).with_name("shifted_clock.c")
HOUR_S = 3600


def built(folder: Path) -> Path:
    """The library that makes the wall clock jump."""
    need("compilers")
    library = folder / "shifted_clock.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def jumping(library: Path, notes: Path, *, shift_s: int, in_s: int) -> Mapping[str, str]:
    """The variables by which the clock of all processes jumps `in_s` from now; who has seen it is noted."""
    notes.mkdir()
    at = int(time.monotonic()) + in_s
    return {"LD_PRELOAD": str(library), "SHIFT_AT": str(at), "SHIFT_S": str(shift_s), "SHIFT_NOTES": str(notes)}
