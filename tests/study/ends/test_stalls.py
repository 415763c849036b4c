"""A rank that never comes, and an mpirun that is gone: named, ended, and started again."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.study.ends.test_signals import ENDLESS, wait_for
from tests.support.launch import mpirun
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_here

Start = Callable[..., AbstractContextManager[LiveRun]]

STALL_S = 12.0


def stalling(method: str, rank: int = 1, *, deaf: bool = False, once: bool = False) -> dict[str, Any]:
    """Settings of a study in which this method never returns on one rank."""
    return {
        "server.class": "stalling_server.py:StallingServer",
        "server.stall_s": STALL_S,
        "user": {"trouble": None, "stall": method, "rank": rank, "deaf": deaf, "once": once},
    }


def failure(run: Run) -> dict[str, Any]:
    return json.loads((run.output_dir / "exit.json").read_text())  # type: ignore[no-any-return]


def log(run: Run, rank: int) -> str:
    return (run.output_dir / "logs" / f"server-{rank}.log").read_text()


@pytest.mark.parametrize(
    ("method", "mpi", "waits_in"),
    [
        ("training_step", "mpich", "all_reduce"),
        ("prepare_training_attributes", "openmpi", "the control round"),
        pytest.param("validation_step", "openmpi", "all_reduce", marks=pytest.mark.full),
        pytest.param("on_train_end", "mpich", "a gather", marks=pytest.mark.full),
    ],
)
def test_user_code_that_never_returns_is_named_with_where_the_others_wait(
    start: Start, method: str, mpi: str, waits_in: str
) -> None:
    with start(num_ranks=2, mpi=mpi, settings=stalling(method, deaf=True)) as live:
        live.wait_until(lambda: "blocked" in live.said)
        done = live.end()
    assert done.exit_code == 7, done.output
    said = failure(done)["message"]
    assert said.startswith(f"the ranks have not met for {STALL_S:g} s (server.stall_s): ")
    assert f"rank 0 waits for the others in {waits_in}" in said
    assert f"rank 1 is in StallingServer.{method} (" in said
    assert failure(done)["exit_code"] == 7
    assert said in done.output
    assert "in block" in log(done, 1)
    assert "in _wait" in log(done, 0)


@pytest.mark.full
def test_ranks_that_wait_for_gradients_are_ended_as_well(start: Start) -> None:
    settings = {"server.class": "stalling_torch_server.py:StallingServer", "server.stall_s": 20.0}
    with start(num_ranks=2, settings=settings) as live:
        done = live.end()
    assert done.exit_code == 7, done.output
    assert "rank 1 is in StallingServer.training_step (" in failure(done)["message"]
    assert "rank 0 waits for the others in all_reduce" in failure(done)["message"]
    assert "torch/reduction.py" in log(done, 0)


def test_an_mpi_init_to_which_some_rank_never_comes_is_ended(tmp_path: Path) -> None:
    script = str(Path(sys.prefix) / "bin" / "stream-server")
    settings = ["--set", f"study.output_dir={json.dumps(str(tmp_path / 'run'))}", "--set", "server.stall_s=2"]
    launch = mpirun("mpich", 1, [script, "--config", str(NUMPY_STUDY), *settings])
    line = [*launch.argv, ":", "-n", "1", "sleep", "200"]
    ended = subprocess.run(line, env=launch.environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "Timeout (0:00:02)!" in ended.stderr
    assert "in ranks_from_environment" in ended.stderr


def test_a_rank_that_is_stopped_is_left_by_the_others(start: Start) -> None:
    with start(num_ranks=2, settings=ENDLESS | {"server.stall_s": STALL_S}) as live:
        wait_for(live, "running")
        live.ranks[1].suspend()
        done = live.end()
    assert done.exit_code == 7, done.output
    assert "rank 1 has said nothing" in failure(done)["message"]


@pytest.mark.full
def test_a_server_that_stalls_is_started_again_by_the_launcher(start: Start) -> None:
    settings = stalling("training_step", once=True) | {"server.ranks": 2, "study.simulations": 1}
    with start(program="stream-launcher", mpi=None, settings=settings) as live:
        done = live.end()
    assert_complete(done, num_simulations=1)
    assert done.report["restarts"] == 1
    assert "the ranks have not met" in done.launcher_log


def test_simulations_that_take_longer_than_the_limit_to_end_are_no_stall(start: Start, tmp_path: Path) -> None:
    settings = {"simulation.command": ["python", "lingering.py", "16"], "server.stall_s": STALL_S}
    alone = {"study.simulations": 1, "validation.simulations": 0, "validation.every_batches": None}
    with start(num_ranks=2, settings=settings | alone) as live:
        done = live.end()
    assert done.exit_code == 0, done.output


@pytest.mark.full
def test_one_rank_that_is_slow_is_named_and_goes_on(tmp_path: Path) -> None:
    user = {"trouble": None, "step_s": 1.5, "validation_s": 0}
    settings = {"server.class": "busy_server.py:BusyServer", "server.stall_s": 1.0, "user": user}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings | {"training.max_batches": 1})
    assert done.exit_code == 0, done.output
    assert "rank 0 has come to no control round for" in done.output
    assert "is in BusyServer.training_step (" in done.output


def test_the_loss_of_the_proxy_of_mpich_ends_mpirun_and_all_ranks(start: Start) -> None:
    with start(num_ranks=2, settings=ENDLESS) as live:
        wait_for(live, "running")
        proxy = live.ranks[0].parents()[1]
        assert proxy.name() == "hydra_pmi_proxy"
        proxy.kill()
        done = live.end()
    assert done.exit_code != 0
    assert "mpirun, or the process of it that started this rank, is gone" in failure(done)["message"]


IN_IMPORT = {"server.class": "blocking_import.py:LinearServer"}
IN_USER_CODE = stalling("prepare_training_attributes") | {"server.stall_s": 200}


@pytest.mark.parametrize(("num_ranks", "mpi", "settings"), [(1, None, IN_IMPORT), (2, "mpich", IN_USER_CODE)])
def test_the_first_signal_ends_a_set_up(
    start: Start, num_ranks: int, mpi: str | None, settings: dict[str, Any]
) -> None:
    with start(num_ranks=num_ranks, mpi=mpi, settings=settings) as live:
        live.wait_until(lambda: "blocked" in live.said)
        live.process.send_signal(signal.SIGINT)
        done = live.end()
    assert done.exit_code == 75, done.output
    assert "stopped by SIGINT during the set-up; run it again to go on" in done.output
    assert "Traceback" not in done.output


def test_the_launcher_ends_a_set_up_and_says_that_it_can_go_on(start: Start) -> None:
    settings = stalling("prepare_training_attributes", rank=0) | {"server.stall_s": 200}
    with start(program="stream-launcher", mpi=None, settings=settings) as live:
        live.wait_until(lambda: "blocked" in live.said)
        live.process.send_signal(signal.SIGTERM)
        done = live.end()
    assert done.exit_code == 75, done.output


@pytest.mark.parametrize(
    "method", [pytest.param("prepare_training_attributes", marks=pytest.mark.full), "training_step"]
)
def test_a_second_signal_ends_a_server_whose_user_code_hears_none(start: Start, method: str) -> None:
    with start(mpi=None, settings=stalling(method, rank=0, deaf=True) | {"server.stall_s": 200}) as live:
        live.wait_until(lambda: "blocked" in live.said)
        live.process.send_signal(signal.SIGTERM)
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process(live.process.pid).wait(0.6)
        live.process.send_signal(signal.SIGTERM)
        done = live.end()
    assert done.exit_code == 130, done.output


def test_ctrl_c_before_the_first_batch_does_not_claim_that_all_is_trained(start: Start, tmp_path: Path) -> None:
    settings = {
        "simulation.command": ["python", "patient.py", str(tmp_path / "never")],
        "training.batch_size": 40,
        "buffer.capacity": 60,
    }
    with start(mpi=None, settings=settings | {"simulation.timeout_s": 200}) as live:
        wait_for(live, "waiting")
        live.process.send_signal(signal.SIGINT)
        live.wait_until(lambda: "simulations still run" in live.said)
        live.process.send_signal(signal.SIGINT)
        done = live.end()
    assert "the training has stopped (stopped by SIGINT), but simulations still run" in done.output
    assert "all is trained" not in done.output
