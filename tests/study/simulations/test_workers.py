"""Persistent workers: one process computes several simulations, and its death costs the one that it was at."""

import csv
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.timeline import AttemptTimeline
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here

pytestmark = pytest.mark.slow
NUM, MAX_RUNNING = 8, 2


def workers(trouble: str = "", per_worker: int | str = "many", **more: Any) -> dict[str, Any]:
    command = ["python", "worker.py", *([trouble] if trouble else [])]
    return {
        "simulation.command": command,
        "simulation.per_worker": per_worker,
        "study.simulations": NUM,
        "launcher.max_running": MAX_RUNNING,
    } | more


def num_processes(run: Run) -> int:
    """Each job has an exit code of its own, unless it was killed."""
    return len(list(run.output_dir.glob("simulations/*/attempt-*/job.exit")))


def failures(run: Run) -> list[str]:
    return [line for line in run.launcher_log.splitlines() if " failed: " in line]


def counted(run: Run) -> list[str]:
    return [line for line in failures(run) if "not counted" not in line]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[dict[str, Any]], Run]:
    """`run({...})` runs a study with these settings on one rank."""

    def run(settings: dict[str, Any]) -> Run:
        return run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)

    return run


def test_a_worker_computes_one_simulation_after_another_each_with_its_own_parameters(run: Callable[..., Run]) -> None:
    done = run(workers())
    assert_complete(done, NUM)
    assert set(done.attempts.values()) == {1}
    assert not failures(done)
    assert num_processes(done) <= NUM
    attempts = AttemptTimeline(RunFolder(done.output_dir)).update(is_live=False)
    spans = [(it.started_s, it.ended_s) for it in attempts if it.started_s is not None and it.ended_s is not None]
    assert len(spans) == NUM + 1
    at_once = [sum(start <= moment < end for start, end in spans) for moment, _ in spans]
    assert max(at_once) <= MAX_RUNNING


@pytest.mark.full
def test_no_worker_gets_more_simulations_than_the_study_says(run: Callable[..., Run]) -> None:
    done = run(workers(per_worker=2))
    assert_complete(done, NUM)
    assert num_processes(done) >= NUM / 2
    logs = [path.read_text().split() for path in done.output_dir.glob("simulations/*/attempt-*/output.log")]
    assert all(len(log) <= 2 for log in logs)


@pytest.mark.full
def test_workers_compute_what_a_class_suggests_and_make_windows(run: Callable[..., Run]) -> None:
    """The class has suggested what is on the list of a worker before this is written."""
    windows = {"samples": {"window": {"length": 3}}, "buffer.routing": "simulations"}
    sampler = {"class": "learning_sampler.py:Evenly", "lookahead": 2 * MAX_RUNNING + 1}
    server = {"server.class": "window_server.py:WindowServer", "parameters.sampler": sampler}
    done = run(workers(**windows, **server))
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.account["windows"]["made"] == done.account["trained"] == NUM * 18
    assert not failures(done)
    assert num_processes(done) < NUM
    with (done.output_dir / "parameters.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["proposed by"].rpartition(":")[2] for row in rows} == {"Evenly"}
    assert len({row["offset"] for row in rows}) == NUM + 1


def test_the_death_of_a_worker_costs_one_attempt_of_the_simulation_that_it_was_at(run: Callable[..., Run]) -> None:
    done = run(workers("dies"))
    assert_complete(done, NUM)
    assert len(counted(done)) == 1
    assert "was killed by SIGKILL" in counted(done)[0]


@pytest.mark.full
def test_a_worker_that_hangs_is_killed_and_only_the_simulation_that_it_was_at_has_failed(
    run: Callable[..., Run],
) -> None:
    done = run(workers("hangs", **{"simulation.timeout_s": 10}))
    assert_complete(done, NUM)
    assert len(counted(done)) == 1
    assert "sent no new time step for 10 s (simulation.timeout_s)" in counted(done)[0]


@pytest.mark.parametrize(
    "trouble", ["leaves", *(pytest.param(it, marks=pytest.mark.full) for it in ("never asks", "asks twice"))]
)
def test_what_a_worker_leaves_out_of_its_list_is_given_to_another(run: Callable[..., Run], trouble: str) -> None:
    done = run(workers(trouble, per_worker=3, **{"study.simulations": 5, "launcher.max_running": 1}))
    assert_complete(done, 5)
    assert len(counted(done)) <= (trouble == "leaves")


@pytest.mark.parametrize("victim", ["server", pytest.param("launcher", marks=pytest.mark.full)])
def test_workers_outlive_server_and_launcher(start: Callable[..., Any], victim: str) -> None:
    how = {"program": "stream-launcher", "mpi": None} if victim == "server" else {}
    settings = workers("paced", **{"launcher.max_running": 1, "checkpoint.every_batches": 2})
    with start(settings=settings, **how) as live:
        live.wait_until(lambda: "simulation 1 finished" in live.launcher_log)
        (live.ranks[0] if victim == "server" else live.launcher).send_signal(signal.SIGKILL)
        done = live.end()
    assert_complete(done, NUM)
    assert not counted(done)
