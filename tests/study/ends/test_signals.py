"""A study that is stopped saves a checkpoint, and one that loses a process leaves nothing behind."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.runs import LiveRun, Run, assert_complete

Start = Callable[..., AbstractContextManager[LiveRun]]

# Its simulations would go on for ever, but notice when nothing more is wanted.
ENDLESS: dict[str, Any] = {"simulation.command": ["python", "endless.py"], "study.time_steps": None}


@pytest.fixture
def deaf(tmp_path: Path) -> dict[str, Any]:
    """Settings of a study whose simulations stop half-way, and from then on listen to nothing."""
    return {"simulation.command": ["python", "patient.py", str(tmp_path / "never")], "simulation.timeout_s": 200}


def wait_for(live: LiveRun, word: str) -> None:
    """Wait until both simulations that run at once have said it."""
    live.wait_until(lambda: all(word in live.log(simulation) for simulation in (0, 1)))


def assert_stopped_in_order(done: Run, name: str) -> None:
    report = done.report
    assert done.exit_code == 75, done.output
    assert (report["exit_code"], report["exit_reason"]) == (75, "saved")
    assert f"stopped by {name}" in report["message"]
    assert report["balanced"] is True
    assert report["simulations"]["stopped"] == report["simulations"]["requested"] == 7
    assert set(report["samples"]["untrained_reasons"]) <= {"saved"}
    assert (done.output_dir / "checkpoints" / "000001" / "manifest.json").exists()
    for simulation in (0, 1):
        assert "not wanted any more" in done.log(simulation)


@pytest.mark.parametrize(
    ("num_ranks", "mpi", "name"),
    [
        # submitit's signal.
        (1, None, "SIGUSR2"),
        pytest.param(1, None, "SIGHUP", marks=pytest.mark.full),
        pytest.param(1, None, "SIGXCPU", marks=pytest.mark.full),
        pytest.param(1, None, "SIGINT", marks=pytest.mark.full),
        pytest.param(1, None, "SIGTERM", marks=pytest.mark.full),
        pytest.param(2, "mpich", "SIGINT", marks=pytest.mark.full),
        (2, "mpich", "SIGTERM"),
        # Open MPI's mpirun leaves its ranks no time after the other two; this one it passes on.
        pytest.param(2, "openmpi", "SIGUSR1", marks=pytest.mark.full),
        pytest.param(2, "openmpi", "SIGUSR2", marks=pytest.mark.full),
        pytest.param(2, "openmpi", "SIGXCPU", marks=pytest.mark.full),
    ],
)
def test_a_signal_to_mpirun_or_the_server_stops_a_study_in_order(
    start: Start, num_ranks: int, mpi: str | None, name: str
) -> None:
    with start(num_ranks=num_ranks, mpi=mpi, settings=ENDLESS) as live:
        wait_for(live, "running")
        live.process.send_signal(signal.Signals[name])
        assert_stopped_in_order(live.end(), name)


def test_a_signal_to_mpirun_of_open_mpi_leaves_nothing_behind(start: Start, deaf: dict[str, Any]) -> None:
    with start(num_ranks=2, mpi="openmpi", settings=deaf) as live:
        wait_for(live, "waiting")
        live.process.send_signal(signal.SIGTERM)
        assert live.end().exit_code != 0


def test_a_second_ctrl_c_ends_a_study_at_once(start: Start, deaf: dict[str, Any]) -> None:
    with start(mpi=None, settings=deaf) as live:
        wait_for(live, "waiting")
        live.process.send_signal(signal.SIGINT)
        live.wait_until(lambda: "stopping" in live.launcher_log)
        live.process.send_signal(signal.SIGINT)
        assert live.end().exit_code != 0


def rank_0(live: LiveRun) -> psutil.Process:
    return live.ranks[0]


def last_rank(live: LiveRun) -> psutil.Process:
    return live.ranks[-1]


@pytest.mark.parametrize(
    ("victim", "num_ranks", "mpi"),
    [
        pytest.param(rank_0, 1, None, marks=pytest.mark.full),
        pytest.param(rank_0, 2, "mpich", marks=pytest.mark.full),
        (rank_0, 2, "openmpi"),
        (last_rank, 2, "mpich"),
        pytest.param(last_rank, 2, "openmpi", marks=pytest.mark.full),
    ],
)
def test_no_process_of_a_study_outlives_the_loss_of_one(
    start: Start, deaf: dict[str, Any], victim: Callable[[LiveRun], psutil.Process], num_ranks: int, mpi: str | None
) -> None:
    with start(num_ranks=num_ranks, mpi=mpi, settings=deaf) as live:
        wait_for(live, "waiting")
        victim(live).kill()
        assert live.end().exit_code != 0


@pytest.mark.parametrize(("num_ranks", "mpi"), [pytest.param(1, None, marks=pytest.mark.full), (2, "mpich")])
def test_a_launcher_that_is_killed_is_replaced_by_rank_0_and_costs_nothing(
    start: Start, tmp_path: Path, num_ranks: int, mpi: str | None
) -> None:
    go = tmp_path / "go"
    settings = {"simulation.command": ["python", "patient.py", str(go)], "study.simulations": 2}
    with start(num_ranks=num_ranks, mpi=mpi, settings=settings) as live:
        wait_for(live, "waiting")
        killed = live.launcher
        killed.kill()
        live.wait_until(lambda: "taken over" in live.launcher_log)
        go.touch()
        done = live.end()
    assert_complete(done, num_simulations=2)
    assert done.report["restarts"] == 0
    assert done.attempts == dict.fromkeys(range(3), 1)
