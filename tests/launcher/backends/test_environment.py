import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_server.launcher.backends import environment
from stream_server.launcher.backends.environment import (
    THREAD_VARIABLES,
    scrubbed,
    simulation_environment,
    with_threads,
    with_virtual_environment,
)
from tests.support.studies import StudyFolder


@pytest.mark.parametrize(
    "name",
    [
        "PMI_RANK",
        "PMI_FD",
        "PMIX_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_MCA_ess",
        "PRTE_MCA_prte_ess_num_procs",
        "HYDI_CONTROL_FD",
        "HYDRA_LAUNCHER",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_NTASKS",
        "GFORTRAN_UNBUFFERED_PRECONNECTED",
    ],
)
def test_what_makes_a_process_a_rank_is_scrubbed(name: str) -> None:
    assert scrubbed({name: "1", "HOME": "/home/me"}) == {"HOME": "/home/me"}


@pytest.mark.parametrize(
    "name", ["PATH", "OMP_NUM_THREADS", "SLURM_JOB_ID", "MPI_HOME", "OMPI_ALLOW_RUN_AS_ROOT", "LD_LIBRARY_PATH"]
)
def test_what_a_simulation_needs_stays(name: str) -> None:
    assert scrubbed({name: "1"}) == {name: "1"}


def test_python_is_that_of_our_virtual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setattr(environment.sys, "prefix", "/venv")
    assert with_virtual_environment({"PATH": "/usr/bin"}) == {"PATH": f"{scripts}{os.pathsep}/usr/bin"}


def test_an_activated_environment_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/first{os.pathsep}{Path(sys.executable).parent}"
    monkeypatch.setattr(environment.sys, "prefix", "/venv")
    assert with_virtual_environment({"PATH": path}) == {"PATH": path}


def test_each_library_of_a_simulation_gets_as_many_threads_as_a_rank_has_cores() -> None:
    assert with_threads({"HOME": "/home/me"}, 3) == {"HOME": "/home/me", **dict.fromkeys(THREAD_VARIABLES, "3")}


def test_the_threads_that_the_user_sets_stay() -> None:
    found = with_threads({"MKL_NUM_THREADS": "5"}, 1)
    assert found == {**dict.fromkeys(THREAD_VARIABLES, "1"), "MKL_NUM_THREADS": "5"}


def test_omp_num_threads_of_the_user_counts_for_the_libraries_that_would_follow_it() -> None:
    found = with_threads({"OMP_NUM_THREADS": "4,2"}, 1)
    assert found == {**dict.fromkeys(THREAD_VARIABLES, "4"), "OMP_NUM_THREADS": "4,2"}


@pytest.mark.parametrize("nonsense", ["", "many", "0", "-1"])
def test_an_omp_num_threads_that_says_nothing_changes_nothing_else(nonsense: str) -> None:
    found = with_threads({"OMP_NUM_THREADS": nonsense}, 2)
    assert found == {**dict.fromkeys(THREAD_VARIABLES, "2"), "OMP_NUM_THREADS": nonsense}


@pytest.mark.parametrize(
    ("cores_per_rank", "max_running", "expected"),
    [(2, 3, None), (2, 4, "passive"), (1, 9, None)],
)
def test_threads_of_simulations_sleep_while_they_wait_where_the_simulations_take_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores_per_rank: int, max_running: int, expected: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    changes = {"simulation.job.cores_per_rank": cores_per_rank, "launcher.max_running": max_running}
    found = simulation_environment(StudyFolder(tmp_path / "heat").load(changes), {"PATH": "/bin"})
    assert found.get("OMP_WAIT_POLICY") == expected


def test_the_launcher_gets_back_the_cores_that_mpirun_took_from_rank_0() -> None:
    cores = os.sched_getaffinity(0)
    launcher = (
        "import os; from stream_server.launcher.backends.environment import release_cores; "
        "release_cores(); print(*os.sched_getaffinity(0))"
    )
    rank_0 = (
        f"import os, subprocess, sys; os.sched_setaffinity(0, {{{min(cores)}}}); "
        f"subprocess.run([sys.executable, '-c', {launcher!r}], check=True)"
    )
    shown = subprocess.run([sys.executable, "-c", rank_0], check=True, capture_output=True, text=True)
    assert set(map(int, shown.stdout.split())) == cores
