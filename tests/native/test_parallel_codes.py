"""C and Fortran codes with MPI whose ranks, or whose server, are killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.native.building import Installation
from tests.study.simulations.test_mpi_simulations import MPI_STUDY, NUM_SIMULATIONS, SUPERVISED, counted
from tests.support.runs import assert_complete, run_study, start_study

CODES = Path(__file__).parent / "parallel"
VICTIM = 1


def codes(*params: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("study", params, indirect=True)


@pytest.fixture
def study(request: pytest.FixtureRequest, installation: Installation, tmp_path: Path) -> dict[str, Any]:
    """Settings with which the study runs the code; its trouble is to be added to the command."""
    language, mpi = request.param.split("-")
    program = tmp_path / "decomposed"
    if language == "c":
        installation.build(program, CODES / "decomposed.c", compiler=f"mpicc.{mpi}")
    else:
        sources = installation.fortran_source, CODES / "decomposed.f90"
        installation.build(program, *sources, compiler=f"mpif90.{mpi}", options=("-Wall", "-Wextra"))
    # Ranks that wait for each other spin, and the server has to share the cores with them.
    one = {"launcher.max_running": 1, "simulation.job.mpirun": [f"mpirun.{mpi}"]}
    if mpi == "openmpi":
        one["simulation.job.mpirun"] += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return one | {"simulation.command": [str(program)]}


@pytest.mark.full
@codes("c-openmpi", "fortran-mpich")
def test_a_code_of_which_a_rank_is_killed_is_started_again(study: dict[str, Any], tmp_path: Path) -> None:
    study["simulation.command"] += ["kill", str(VICTIM), "-"]
    done = run_study(MPI_STUDY, tmp_path / "run", num_ranks=2, settings=study | {"study.simulations": 2})
    assert_complete(done, num_simulations=2)
    assert counted(done) == {(VICTIM, 0): True}


@pytest.mark.full
@codes("fortran-mpich", "c-openmpi")
def test_a_code_outlives_its_server(study: dict[str, Any], tmp_path: Path) -> None:
    go = tmp_path / "go"
    study["simulation.command"] += ["wait", "0", str(go)]
    with start_study(MPI_STUDY, tmp_path / "run", **SUPERVISED, settings=study) as live:
        live.wait_until(lambda: "waiting" in live.log(0))
        live.ranks[0].kill()
        live.wait_until(lambda: "incarnation 2" in live.launcher_log)
        go.touch()
        done = live.end()
    assert_complete(done, num_simulations=NUM_SIMULATIONS)
    assert done.report["restarts"] == 1
    assert done.report["simulations"]["survived_restarts"] > 0
    assert set(done.attempts.values()) == {1}
