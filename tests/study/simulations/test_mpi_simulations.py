"""Simulations that are MPI programs: the launcher starts their ranks, alone or several simulations in one job."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.study_run import journal_of
from tests.study.conftest import Here
from tests.support.runs import LiveRun, Run, assert_complete, run_study, start_study

MPI_STUDY = Path(__file__).parents[1] / "mpi_study" / "study.json"
NUM_SIMULATIONS = 3
SUPERVISED: dict[str, Any] = {"program": "stream-launcher", "mpi": None}
# The held-out simulation and the first one share a job, and so do the other two.
GROUPS: dict[str, Any] = {"simulation.per_job": 2}

Start = Callable[..., AbstractContextManager[LiveRun]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    return lambda **options: run_study(MPI_STUDY, tmp_path / "run", **options)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda **options: start_study(MPI_STUDY, tmp_path / "run", **options)


def troubled(trouble: str, victim: int, *more: str) -> dict[str, Any]:
    return {"simulation.command": ["python", "-m", "mpi4py", "decomposed.py", trouble, str(victim), *more]}


def counted(run: Run) -> dict[tuple[int, int], bool]:
    """The attempts that failed, and whether that counted against their simulation."""
    records = journal_of(run.output_dir)
    ends = {(it["simulation"], it["attempt"]): it for it in records if it["message"] == "Failed"}
    return {attempt: not it["excuse"] for attempt, it in ends.items() if "exit code 0" not in it["reason"]}


@pytest.mark.full
@pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=pytest.mark.full)])
def test_blocks_that_do_not_line_up_with_the_storage_order_arrive_in_their_places_also_after_a_rank_was_killed(
    run: Callable[..., Run], mpi: str
) -> None:
    alone = {"simulation.ranks": 4, "study.simulations": 1}
    alone |= {"validation.simulations": 0, "validation.every_batches": None}
    done = run(mpi=mpi, settings=troubled("kill", 0) | alone)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    assert done.account["accepted"] == done.account["trained"] == 20
    assert counted(done) == {(0, 0): True}
    assert done.attempts == {0: 2}


def test_parallel_simulations_outlive_their_server(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = troubled("wait", -1, str(go)) | {"study.simulations": 1, "server.ranks": 1}
    with start(**SUPERVISED, settings=settings) as live:
        live.wait_until(lambda: all("waiting" in live.log(simulation) for simulation in (0, 1)))
        live.ranks[0].kill()
        live.wait_until(lambda: "incarnation 2" in live.launcher_log)
        go.touch()
        done = live.end()
    assert_complete(done, num_simulations=1)
    assert done.report["restarts"] == 1
    assert done.report["simulations"]["survived_restarts"] > 0
    assert set(done.attempts.values()) == {1}


@pytest.mark.full
@pytest.mark.parametrize(("trouble", "mpi"), [("crash", "mpich"), ("kill", "openmpi")])
def test_a_simulation_that_fails_takes_those_that_share_its_job_down_only_once(
    run: Callable[..., Run], trouble: str, mpi: str
) -> None:
    done = run(mpi=mpi, settings=GROUPS | troubled(trouble, 0) | {"study.simulations": 2})
    assert_complete(done, num_simulations=2)
    assert counted(done) == {(0, 0): True, (1, 0): False}
    assert "for simulation 0, which shared the job, failed" in done.launcher_log
    assert done.attempts == {0: 2, 1: 2, 2: 1}


@pytest.mark.full
def test_a_job_of_several_simulations_is_taken_over_by_the_next_launcher(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = GROUPS | troubled("wait", -1, str(go)) | {"server.ranks": 1}
    with start(**SUPERVISED, settings=settings) as first:
        first.wait_until(lambda: all("waiting" in first.log(simulation) for simulation in (0, 1)))
        first.process.kill()
        first.process.wait()
        with start(**SUPERVISED, settings=settings, mark=first.mark) as live:
            live.wait_until(lambda: live.launcher_log.count("taken over") == 3)
            go.touch()
            done = live.end()
    assert_complete(done, num_simulations=NUM_SIMULATIONS)
    assert done.report["restarts"] == 0
    assert set(done.attempts.values()) == {1}


NO_MPIRUN = (
    {"simulation.job.mpirun": ["no_such_mpirun"]},
    "simulation.job.mpirun: 'no_such_mpirun' was not found on the PATH of the simulations",
)
NO_SOLVER = (
    {"simulation.command": ["no_such_solver"]},
    "simulation.command: 'no_such_solver' is neither on the PATH",
)
REFUSALS = [
    pytest.param("stream-server", [], *NO_MPIRUN, id="server-mpirun"),
    pytest.param("stream-launcher", ["--check"], *NO_SOLVER, id="check-solver"),
    pytest.param("stream-launcher", [], *NO_SOLVER, id="launcher-solver", marks=pytest.mark.full),
    pytest.param("stream-launcher", [], *NO_MPIRUN, id="launcher-mpirun", marks=pytest.mark.full),
    pytest.param("stream-launcher", ["--check"], *NO_MPIRUN, id="check-mpirun", marks=pytest.mark.full),
    pytest.param("stream-server", [], *NO_SOLVER, id="server-solver", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("program", "arguments", "settings", "words"), REFUSALS)
def test_a_missing_program_is_told_before_anything_begins(
    run: Callable[..., Run], program: str, arguments: list[str], settings: dict[str, Any], words: str
) -> None:
    done = run(program=program, mpi=None, arguments=arguments, settings=settings)
    assert done.exit_code == 2
    assert words in done.output
    assert not done.output_dir.exists()


def test_check_tells_the_whole_command_line(stream_server_here: Here) -> None:
    exit_code, output = stream_server_here(MPI_STUDY, "--check", settings=GROUPS)
    assert exit_code == 0
    (line,) = (line for line in output.splitlines() if line.startswith("command"))
    script = MPI_STUDY.parent / "decomposed.py"
    assert line.endswith(f"/bin/mpirun -n 2 python -m mpi4py {script} : … (2 simulations in one job)")
