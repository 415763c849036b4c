"""The names of shared memory that MPICH keeps in the file system, where a killed job would leave them for good.

MPICH makes one segment of some 2 MB per job and node, which all of the job's ranks there have mapped when MPI_Init
returns, and removes its name in MPI_Finalize.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PREFIX = "/dev/shm/mpich_shm_"  # noqa: S108 (MPICH chooses it)
GONE = " (deleted)"


def names_of(pid: int | str = "self") -> set[str]:
    """The names of the segments that a process has mapped; none of one that is gone or of somebody else."""
    try:
        maps = (Path("/proc") / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return set()
    paths = {PREFIX + line.partition(PREFIX)[2] for line in maps.splitlines() if PREFIX in line}
    return {path for path in paths if not path.endswith(GONE)}


def remove(names: Collection[str]) -> None:
    """Take names away; the memory goes with the last process that has it mapped."""
    for name in names:
        with suppress(OSError):
            os.unlink(name)
