"""A worker in C computes the simulations that its study has meant for it."""

from pathlib import Path

import pytest

from tests.native.native_client import built, library
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

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
