"""Runs the programs of this folder and gives what they printed."""

import subprocess
from collections.abc import Sequence

from tests.mpi.launch import alone, mpirun

DEADLINE_S = 50.0


def run(
    program: str, num_ranks: int, arguments: Sequence[str] = (), implementation: str = "mpich"
) -> subprocess.CompletedProcess[str]:
    """Run `tests/mpi/PROGRAM.py` on ranks, or without MPI when there is one."""
    argv = ["-W", "error", "-m", f"tests.mpi.{program}", *arguments]
    launch = alone(argv) if num_ranks == 1 else mpirun(implementation, num_ranks, argv)
    return subprocess.run(
        launch.argv, env=launch.environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
