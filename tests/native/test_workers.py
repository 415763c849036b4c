"""A worker in C computes the simulations that its study has meant for it."""

from pathlib import Path

import numpy as np
import pytest

from stream_server.client_api import connect
from tests.native.building import run
from tests.native.native_client import built, library
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study, start_study

__all__ = ["library"]


@pytest.mark.slow
def test_stream_next_becomes_the_next_simulation_of_the_list(library: Path, tmp_path: Path) -> None:
    settings = {
        "simulation.command": [str(built(library, tmp_path, "worker.c"))],
        "simulation.per_worker": 4,
        "study.simulations": 8,
    }
    done = run_study(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_complete(done, 8)
    assert set(done.attempts.values()) == {1}
    ends = list(done.output_dir.glob("simulations/*/attempt-*/job.exit"))
    assert len(ends) < 9
    assert {path.read_text() for path in ends} == {"0\n"}


@pytest.mark.slow
def test_a_worker_goes_on_with_the_next_simulation_when_one_is_stopped_early(library: Path, tmp_path: Path) -> None:
    settings = {
        "simulation.command": [str(built(library, tmp_path, "worker.c")), "50"],
        "simulation.per_worker": 4,
        "study.simulations": 8,
        "server.class": "stopping_server.py:StoppingServer",
    }
    done = run_study(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    counts = done.report["simulations"]
    assert counts["stopped_early"] >= 1
    assert counts["stopped_early"] + counts["finished"] == 9
    assert set(done.attempts.values()) == {1}
    ends = list(done.output_dir.glob("simulations/*/attempt-*/job.exit"))
    assert len(ends) < 9
    assert {path.read_text() for path in ends} == {"0\n"}


@pytest.mark.full
@pytest.mark.slow
def test_a_worker_that_attaches_beside_another_program_makes_windows(library: Path, tmp_path: Path) -> None:
    """Nobody launches: the worker takes what the other one leaves."""
    worker = built(library, tmp_path, "worker.c")
    settings = {
        "simulation.command": None,
        "simulation.retries": 2,
        "launcher.max_running": 1,
        "study.simulations": 4,
        "samples": {"window": {"length": 2}},
        "buffer.policy": "fifo",
        "buffer.capacity": 60,
        "server.class": "window_server.py:ConstantServer",
    }
    with start_study(NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings) as live:
        live.wait_until(live.connection.exists)
        with connect(live.connection) as simulation:
            for step in simulation.time_steps or ():
                assert simulation.send(step, signal=np.full(8, simulation.parameters["offset"]))
        run([str(worker)], cwd=tmp_path, environment={"STREAM_CONNECTION": str(live.connection)})
        done = live.end()
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    assert done.account["windows"]["made"] == done.account["trained"] == 4 * 19
    lines = [np.loadtxt(file, int, ndmin=2) for file in done.output_dir.glob("windows-*.txt")]
    expected = [[simulation, step, step + 1] for simulation in range(1, 5) for step in range(19)]
    assert sorted(np.concatenate(lines).tolist()) == expected
    assert len(lines) == 2
