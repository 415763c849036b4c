"""Simulations and ranks share the cores: what a simulation is given, what is shown, and what a restart finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_server.launcher.backends.environment import THREAD_VARIABLES
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

TOLD = "before the restart"


@pytest.fixture(autouse=True)
def _no_threads_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def threads_in(log: str) -> dict[str, str]:
    return dict(line.split("=") for line in log.splitlines() if "_THREADS=" in line)


@pytest.mark.full
def test_a_simulation_gets_one_thread_and_the_split_is_shown(run: Callable[..., Run]) -> None:
    settings = {
        "study.simulations": 1,
        "simulation.command": ["python", "threads.py"],
        "simulation.job.environment": {"MKL_NUM_THREADS": "2"},
    }
    done = run(mpi=None, settings=settings)
    assert_complete(done, num_simulations=1)
    assert threads_in(done.log(1)) == {**dict.fromkeys(THREAD_VARIABLES, "1"), "MKL_NUM_THREADS": "2"}
    [node] = done.report["cores"]
    assert node["threads"] == [max(1, node["cores"] - 2)]
    assert f"\ncores: {node['cores']}: 2 simulations × 1, 1 rank × " in f"\n{done.output}"


def test_more_threads_than_cores_are_warned_of_in_output_and_report(run: Callable[..., Run]) -> None:
    settings = {
        "study.simulations": 1,
        "simulation.command": ["python", "threads.py"],
        "simulation.job.cores_per_rank": 5000,
    }
    done = run(mpi=None, settings=settings, environment={"OPENBLAS_NUM_THREADS": "1"})
    assert_complete(done, num_simulations=1)
    assert threads_in(done.log(1)) == {**dict.fromkeys(THREAD_VARIABLES, "5000"), "OPENBLAS_NUM_THREADS": "1"}
    [warning] = done.report["warnings"]
    assert warning.startswith("simulations and server ranks take 10001 cores of ")
    assert done.output.splitlines().count(warning) == 1
    assert done.report["cores"][0]["oversubscribed"]


@pytest.mark.full
def test_a_restart_on_another_number_of_threads_is_told_in_one_line(tmp_path: Path) -> None:
    settings = {"study.simulations": 2, "checkpoint.every_batches": 2, "launcher.max_running": 1}
    options: dict[str, Any] = {"mpi": None, "settings": settings}
    point = "checkpoint.renamed=kill@2"
    killed = killed_at(point, NUMPY_STUDY, tmp_path / "run", environment={"OMP_NUM_THREADS": "3"}, **options)
    assert TOLD not in killed.output
    done = run_study(NUMPY_STUDY, tmp_path / "run", environment={"OMP_NUM_THREADS": "2"}, **options)
    assert_complete(done, num_simulations=2)
    [line] = [line for line in done.output.splitlines() if TOLD in line]
    assert "each rank computes with 2 threads now, but with 3 threads before the restart" in line
