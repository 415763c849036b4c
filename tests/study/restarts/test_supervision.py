"""`stream-launcher` brings a study to its end, whatever its processes die of."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.study.conftest import KILLED
from tests.support.failpoints import failpoints
from tests.support.killing import checkpoints, copy_of, flip_a_byte
from tests.support.launch import OPENMPI_PREFIX
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_study

Start = Callable[..., AbstractContextManager[LiveRun]]

IMPATIENT = str(Path(__file__).parents[1] / "impatient_launcher.py")
LIMIT_S = 60.0
SUPERVISED: dict[str, Any] = {"program": "stream-launcher", "mpi": None}
SETTINGS: dict[str, Any] = {"study.simulations": 3, "server.ranks": 2, "checkpoint.every_batches": 2}
ALONE = SETTINGS | {"server.ranks": 1}
PACED = SETTINGS | {"study.simulations": 4, "simulation.command": ["python", "paced.py", "0.05"]}
PACED_ALONE = PACED | {"server.ranks": 1}


@pytest.fixture
def supervise(run: Callable[..., Run]) -> Callable[..., Run]:
    """`supervise(settings={...})` runs the NumPy study under `stream-launcher`."""

    def supervise(**options: Any) -> Run:
        return run(**{**SUPERVISED, "settings": SETTINGS, **options})

    return supervise


@pytest.mark.full
def test_a_server_that_is_killed_three_times_costs_nothing(supervise: Callable[..., Run], tmp_path: Path) -> None:
    points = ("checkpoint.renamed=kill@1", "checkpoint.before_manifest=kill@2", "buffer.released=kill@5")
    met = tmp_path / "met"
    done = supervise(settings=PACED_ALONE, environment=failpoints(met, *points))
    assert len(list(met.iterdir())) == 3
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 3
    assert done.report["simulations"]["survived_restarts"] > 0
    assert done.report["failures"] == []


def is_stopped(process: psutil.Process) -> bool:
    return process.is_running() and process.status() == psutil.STATUS_STOPPED


@pytest.mark.parametrize(
    "stopped_s",
    [
        pytest.param("0.5", id="seen by its state", marks=pytest.mark.full),
        pytest.param("60", id="missed by its heartbeat"),
    ],
)
def test_a_rank_that_is_stopped_is_killed_with_its_server_and_the_study_goes_on(
    supervise: Callable[..., Run], tmp_path: Path, stopped_s: str
) -> None:
    environment = failpoints(tmp_path / "met", "buffer.drawn=stop@3") | {"IMPATIENT_STOPPED_S": stopped_s}
    done = supervise(program=IMPATIENT, environment=environment)
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 1
    assert (tmp_path / "met" / "buffer.drawn").exists()
    said = "was stopped by a signal" if stopped_s == "0.5" else "does not answer any more"
    assert said in done.output


@pytest.mark.full
@pytest.mark.quiet
def test_a_rank_that_is_stopped_is_noticed_within_30_s(start: Start, tmp_path: Path) -> None:
    environment = failpoints(tmp_path / "met", "buffer.drawn=stop@3")
    with start(**SUPERVISED, settings=SETTINGS, environment=environment) as live:
        live.wait_until((tmp_path / "met" / "buffer.drawn").exists)
        stopped_at = time.monotonic()
        live.wait_until(lambda: "it is killed" in live.launcher_log, limit_s=30)
        print(f"noticed after {time.monotonic() - stopped_at:.1f} s")
        assert_complete(live.end(), num_simulations=3)


def test_neither_a_full_buffer_nor_a_validation_that_hogs_the_interpreter_looks_like_death(
    supervise: Callable[..., Run],
) -> None:
    """Both last more than twice as long as a rank may be silent."""
    settings = ALONE | {
        "study.simulations": 2,
        "server.class": "busy_server.py:BusyServer",
        "buffer.capacity": 8,
        "client.max_attached": 0,
        "client.window": "1B",
        "validation.every_batches": None,
        "user": {"trouble": None, "rank": 0, "step_s": 1.7, "validation_s": 8.5},
    }
    done = supervise(program=IMPATIENT, settings=settings, environment={"IMPATIENT_STOPPED_S": "0.5"})
    assert_complete(done, num_simulations=2)
    assert done.wall_s > 5 * 1.7 + 8.5
    assert done.report["restarts"] == 0
    assert set(done.attempts.values()) == {1}


def test_the_loss_of_what_has_started_the_ranks_is_the_loss_of_the_server(start: Start) -> None:
    with start(**SUPERVISED, settings=PACED) as live:
        live.wait_until(lambda: (live.output_dir / "checkpoints" / "000001").exists())
        (starter,) = [it for it in live.processes() if "stream_server.launcher.backends.ranks_here" in it.cmdline()]
        starter.kill()
        done = live.end()
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 1


def test_nothing_is_lost_when_two_of_three_ranks_die_together(start: Start) -> None:
    with start(**SUPERVISED, settings=PACED | {"server.ranks": 3}) as live:
        live.wait_until(lambda: (live.output_dir / "checkpoints" / "000001").exists())
        ranks = live.ranks
        assert len(ranks) == 3
        for rank in ranks[:2]:
            # Once the first is gone, mpirun ends the others, too.
            with suppress(psutil.NoSuchProcess):
                rank.kill()
        done = live.end()
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 1
    assert done.report["failures"] == []


def test_a_launcher_that_is_killed_and_started_again_takes_over_what_runs_and_no_other_can(
    start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    settings = SETTINGS | {"simulation.command": ["python", "patient.py", str(go)]}
    with start(**SUPERVISED, settings=settings) as first:
        first.wait_until(lambda: all("waiting" in first.log(simulation) for simulation in (0, 1)))
        second = run_study(NUMPY_STUDY, tmp_path / "run", **SUPERVISED, settings=settings)
        assert second.exit_code == 2
        assert f"is in use: stream-launcher, process {first.process.pid} on" in second.output
        ranks = [rank.pid for rank in first.ranks]
        assert len(ranks) == 2
        first.process.kill()
        first.process.wait()
        with start(**SUPERVISED, settings=settings, mark=first.mark) as live:
            live.wait_until(lambda: live.launcher_log.count("taken over") == 3)
            assert [rank.pid for rank in live.ranks] == ranks
            go.touch()
            done = live.end()
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 0
    assert set(done.attempts.values()) == {1}


@pytest.mark.full
def test_a_simulation_that_did_not_hear_that_it_is_finished_hears_it_from_the_next_server(
    start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    settings = ALONE | {
        "study.simulations": 4,
        "checkpoint.every_batches": 1,
        "simulation.command": ["python", "deaf_at_the_end.py", "1", str(go)],
        "simulation.timeout_s": 600,
    }
    with start(**SUPERVISED, settings=settings) as live:
        live.wait_until(lambda: "simulation 1 finished" in live.launcher_log)
        # It takes one more checkpoint than the one under way; the other simulations bring the batches.
        saved = live.launcher_log.count("is committed")
        live.wait_until(lambda: live.launcher_log.count("is committed") >= saved + 2)
        live.ranks[0].kill()
        live.wait_until(lambda: "incarnation 2" in live.launcher_log)
        go.touch()
        done = live.end()
    assert_complete(done, num_simulations=4)
    assert done.attempts[1] == 1
    assert "my own result is complete" in done.log(1)


def test_a_server_that_always_dies_is_given_up_after_launcher_restarts(supervise: Callable[..., Run]) -> None:
    # Without a folder, each process dies at it.
    environment = failpoints(None, "server.model_ready=kill")
    done = supervise(settings=ALONE | {"launcher.restarts": 1}, environment=environment)
    assert done.exit_code == 7
    assert "1 restart in a row brought no new checkpoint, launcher.restarts allows no more" in done.output
    assert str(done.output_dir / "logs") in done.output
    assert num_starts(done) == 2


@pytest.mark.parametrize(
    ("method", "starts"), [("training_step", 2), pytest.param("prepare_training_attributes", 1, marks=pytest.mark.full)]
)
def test_a_users_class_that_raises_is_started_again_once_and_in_set_up_never(
    supervise: Callable[..., Run], method: str, starts: int
) -> None:
    done = supervise(settings=ALONE | {"user.trouble": method})
    assert done.exit_code == 3
    assert f"trouble in {method} of rank 0" in done.output
    assert num_starts(done) == starts


def test_too_many_failed_simulations_are_no_reason_to_start_the_server_again(supervise: Callable[..., Run]) -> None:
    done = supervise(settings=ALONE | {"simulation.command": ["python", "-c", "exit(3)"]})
    assert (done.exit_code, done.report["exit_code"]) == (4, 4)
    assert num_starts(done) == 1


def test_checkpoints_of_which_none_can_be_used_are_no_reason_to_start_the_server_again(
    killed: Run, supervise: Callable[..., Run], tmp_path: Path
) -> None:
    output_dir = copy_of(killed, tmp_path)
    for checkpoint in checkpoints(output_dir):
        flip_a_byte(output_dir / "checkpoints" / checkpoint / "study.state")
    done = supervise(settings=KILLED | {"server.ranks": 1})
    assert done.exit_code == 6
    assert num_starts(done) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SIGINT", PACED_ALONE),
        ("SIGTERM", PACED),
        ("SIGUSR1", PACED),
    ],
    ids=["SIGINT", "SIGTERM", "SIGUSR1"],
)
def test_a_study_whose_launcher_is_told_to_stop_saves_leaves_and_goes_on_later(
    start: Start, supervise: Callable[..., Run], name: str, settings: dict[str, Any]
) -> None:
    with start(**SUPERVISED, settings=settings) as live:
        live.wait_until(lambda: (live.output_dir / "checkpoints" / "000001").exists())
        live.process.send_signal(signal.Signals[name])
        stopped = live.end()
    assert stopped.exit_code == 75, stopped.output
    done = supervise(settings=settings)
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 1


def num_starts(run: Run) -> int:
    """How often the launcher has started the server."""
    return run.launcher_log.count("INFO server, start")


def test_a_refusal_of_mpirun_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    """Open MPI starts neither ranks of root nor more ranks than there are cores unless it is told to."""
    launcher = [str(OPENMPI_PREFIX / "bin" / "python"), "-m", "stream_server.launcher.supervision.cli"]
    study = ["--config", str(NUMPY_STUDY), f"--set=study.output_dir={tmp_path / 'run'}", "--set=server.ranks=1000"]
    done = subprocess.run([*launcher, *study], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("started no rank of the server; what it wrote above tells why. Open MPI reads") == 1
    assert "it is started again" not in done.stderr
