"""The common part of the sweeps: cases that are run one after the other, and a folder for them."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.campaigns import Round

IN_MEMORY = Path("/dev/shm")


def case(name: str, row: str, column: str, outcome: str, violations: Sequence[str], *, counts: bool = True) -> Round:
    """One case: the line and column of the table in which it counts, what came of it, and what was violated.

    One that `counts` not has not come about, and shows nothing.
    """
    return Round(
        cases={"all": counts, row: counts, column: counts, f"came of it: {outcome}": 1},
        table={(row, column): int(counts)},
        totals={outcome: 1},
        violations=[f"{name}: {violation}" for violation in violations],
        again=f"--only '{name}'",
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone with the block; in memory if the machine has a place for that."""
    is_there = os.access(IN_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="sst-sweep-", dir=IN_MEMORY if is_there else None) as folder:
        yield Path(folder)
