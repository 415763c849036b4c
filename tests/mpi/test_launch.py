"""Both MPI implementations start ranks here."""

import subprocess

import pytest

from tests.support.launch import IMPLEMENTATIONS, mpirun

HELLO = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"sum {world.allreduce(world.rank)} by {MPI.get_vendor()[0]}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_four_ranks_run_under_their_own_mpi(implementation: str) -> None:
    launch = mpirun(implementation, 4, ["-c", HELLO])
    said = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120, check=True)
    vendor = {"mpich": "MPICH", "openmpi": "Open MPI"}[implementation]
    assert said.stdout.count(f"sum 6 by {vendor}") == 4
