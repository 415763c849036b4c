"""One rank that fails takes all others with it, at once and with its cause."""

import time
from pathlib import Path

import pytest

from stream_server.server.failure import Failure
from tests.mpi.running import run


def test_ranks_that_hear_of_a_failure_leave_with_one_exit_code(tmp_path: Path) -> None:
    ran = run("failing", 4, [str(tmp_path), "between_steps"])
    assert ran.returncode == 0
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(4)] == ["3"] * 4


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_wait_inside_the_step_are_aborted(num_ranks: int, tmp_path: Path) -> None:
    start = time.monotonic()
    ran = run("failing", num_ranks, [str(tmp_path), "inside_a_step"])
    assert time.monotonic() - start < 10
    assert ran.returncode != 0
    assert not list(tmp_path.glob("left-*"))
    failure = Failure.read(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.phase, failure.exit_code) == (1, "step", 3)
    assert "Net.training_step raised ValueError: no" in failure.traceback
