"""Persistent workers as jobs of Slurm and as steps of an allocation, of one rank and of several."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_studies import in_allocation, jobs_of, on_login, study
from tests.native.conformance.build import LIBRARIES, NATIVE
from tests.native.native_client import PROGRAMS
from tests.needs import need
from tests.support.cluster import LOGIN, Cluster
from tests.support.runs import LiveRun, Run, assert_complete

__all__ = ["study"]
pytestmark = pytest.mark.slow

NUM = 12
WORKERS = {
    "study.simulations": NUM,
    "simulation.command": ["python", "worker.py"],
    "simulation.per_worker": "many",
    "launcher.max_running": 2,
}
# Each rank has its half of the values.
MPI_WORKER = """
from mpi4py import MPI
from ripple import signal_at
from stream_server.client_api import simulations

rank, num_ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
width = 8 // num_ranks
for simulation in simulations(rank=rank, num_ranks=num_ranks):
    print(f"{simulation.id} on rank {rank} of {num_ranks}", flush=True)
    simulation.declare_field("signal", shape=[8], offset=[width * rank])
    for step in simulation.time_steps:
        signal = signal_at(step, simulation.parameters)
        simulation.send(step, signal=signal[width * rank : width * (rank + 1)])
"""


@pytest.fixture
def mpi_worker(study: Path) -> dict[str, Any]:
    (study.parent / "mpi_worker.py").write_text(MPI_WORKER)
    return WORKERS | {"simulation.command": ["python", "mpi_worker.py"], "simulation.ranks": 2}


@pytest.fixture
def fortran_worker(study: Path) -> dict[str, Any]:
    """A worker of two ranks in Fortran, with Debian's MPICH."""
    need("compilers")
    sources = [*map(str, sorted((NATIVE / "src").glob("*.c"))), str(NATIVE / "fortran" / "stream_client.f90")]
    folder = study.parent
    includes = [f"-I{NATIVE / 'include'}"]
    subprocess.run(["gcc", "-c", *includes, *sources[:-1]], cwd=folder, check=True, timeout=120)
    objects = [f"{Path(source).stem}.o" for source in sources[:-1]]
    program = [sources[-1], str(PROGRAMS / "worker.f90"), *objects, "-o", "worker", *LIBRARIES]
    subprocess.run(["mpif90.mpich", *program], cwd=folder, check=True, timeout=120)
    return WORKERS | {"simulation.command": ["./worker"], "simulation.ranks": 2}


def num_jobs(run: Run) -> int:
    return len(list(run.output_dir.glob("simulations/*/attempt-*/job.exit")))


def computed(run: Run) -> list[int]:
    """The simulations that the workers say they computed."""
    logs = (it for it in run.output_dir.glob("simulations/*/attempt-*/output.log") if not it.is_symlink())
    return sorted(int(line.split()[0]) for log in logs for line in log.read_text().splitlines())


def assert_by_workers(done: Run) -> None:
    assert_complete(done, NUM)
    assert set(done.attempts.values()) == {1}
    assert set(computed(done)) == set(range(NUM + 1))
    assert num_jobs(done) < NUM


def steps_received(cluster: Cluster, live: LiveRun, simulation: int) -> int:
    """How many steps of a simulation rank 0 knows of."""
    told = json.loads(cluster.run(LOGIN, "stream-study", "simulations", "--json", str(live.output_dir)))
    return int(next(it["received"] for it in told if it["simulation"] == simulation))


@pytest.mark.full
def test_a_worker_that_scancel_ends_costs_one_attempt_of_the_simulation_that_it_was_at(
    cluster: Cluster, study: Path
) -> None:
    # It stays at its third simulation, of which some steps have come: between two simulations it would be at none.
    num = 6
    staying = WORKERS | {"study.simulations": num, "simulation.command": ["python", "worker.py", "hangs"]}
    staying |= {"launcher.max_running": 1}
    with on_login(cluster, study, staying) as live:
        live.wait_until(lambda: "simulation 1 finished" in live.launcher_log, 40)
        live.wait_until(lambda: steps_received(cluster, live, 2))
        [number] = jobs_of(cluster, live, "running").values()
        cluster.run(LOGIN, "scancel", number)
        done = live.end(limit_s=80)
        assert len(jobs_of(cluster, live)) == num_jobs(done) < num
    assert_complete(done, num)
    failed = [line for line in done.launcher_log.splitlines() if " failed: " in line]
    [counted] = [line for line in failed if "not counted" not in line]
    assert "simulation 2, attempt 0 failed: " in counted
    assert not list(done.output_dir.glob("simulations/*/attempt-2"))


@pytest.mark.full
def test_workers_of_two_ranks_in_fortran_are_jobs_of_slurm(
    cluster: Cluster, study: Path, fortran_worker: dict[str, Any]
) -> None:
    mpirun = {"simulation.job.mpirun": ["mpirun.mpich", "-n", "{ranks}"]}
    with on_login(cluster, study, fortran_worker | mpirun) as live:
        done = live.end(limit_s=80)
    assert_by_workers(done)


@pytest.mark.full
def test_workers_of_two_ranks_are_steps_of_an_allocation(
    cluster: Cluster, study: Path, mpi_worker: dict[str, Any]
) -> None:
    done = in_allocation(cluster, study, mpi_worker)
    assert_by_workers(done)
    assert computed(done) == sorted(2 * list(range(NUM + 1)))
