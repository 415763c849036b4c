"""Runs the programs of this folder and gives what they printed."""

import subprocess
import tempfile
from collections.abc import Sequence

from tests.support.launch import alone, mpirun
from tests.support.timing import completed

# The beginnings of what torch says of the version of Python, and of its own use of what it has deprecated.
OF_TORCH = ("`torch.jit.", "Guards may run slower on Python")


def run(
    program: str,
    num_ranks: int,
    arguments: Sequence[str] = (),
    *,
    implementation: str = "mpich",
    deadline_s: float = 100.0,
) -> subprocess.CompletedProcess[str]:
    """Run `tests/mpi/PROGRAM.py` on ranks, or without MPI when there is one.

    Warnings are errors, but for those `OF_TORCH`.
    """
    allowed = [option for beginning in OF_TORCH for option in ("-W", f"ignore:{beginning}")]
    argv = ["-W", "error", *allowed, "-m", f"tests.mpi.{program}", *arguments]
    launch = alone(argv) if num_ranks == 1 else mpirun(implementation, num_ranks, argv)
    # torch leaves an empty cache folder among the temporary files.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="mpi-") as temporary:
        environment = launch.environment | {"TMPDIR": temporary, "OMP_NUM_THREADS": "1"}
        return completed(launch.argv, environment, deadline_s)
