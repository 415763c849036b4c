"""One rank that fails takes all others with it, at once and with its cause."""

from pathlib import Path

import pytest

from stream_server.server.study.failure import Failure
from tests.mpi.running import run


@pytest.mark.parametrize("implementation", [pytest.param("mpich", marks=pytest.mark.full), "openmpi"])
def test_ranks_that_hear_of_a_failure_leave_with_one_exit_code(implementation: str, tmp_path: Path) -> None:
    ran = run("failing", 4, [str(tmp_path), "between_steps"], implementation=implementation)
    assert ran.returncode == 0
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(4)] == ["3"] * 4


@pytest.mark.parametrize(
    ("num_ranks", "implementation", "way"),
    [(4, "mpich", "inside_a_step"), (2, "openmpi", "inside_a_step"), (2, "mpich", "inside_a_torch_step")],
)
def test_ranks_that_wait_inside_the_step_leave_it_and_meet_once_more(
    num_ranks: int, implementation: str, way: str, tmp_path: Path
) -> None:
    ran = run("failing", num_ranks, [str(tmp_path), way], implementation=implementation)
    assert ran.returncode != 0
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(num_ranks)] == ["3"] * num_ranks
    assert_failed_in_the_step(tmp_path)


@pytest.mark.full
def test_ranks_in_code_that_does_not_return_are_aborted(tmp_path: Path) -> None:
    ran = run("failing", 2, [str(tmp_path), "beside_other_code"])
    assert ran.returncode != 0
    assert not list(tmp_path.glob("left-*"))
    assert_failed_in_the_step(tmp_path)


@pytest.mark.full
def test_ranks_leave_in_order_after_one_that_failed_when_the_model_was_made(tmp_path: Path) -> None:
    ran = run("failing", 2, [str(tmp_path), "after_the_model_is_made"])
    assert ran.returncode == 0, ran.stderr
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(2)] == ["2"] * 2


def test_ranks_do_not_wait_for_ever_to_leave_mpi() -> None:
    ran = run("leaving", 2)
    assert ran.returncode != 0
    assert "Timeout (0:00:02)!" in ran.stderr
    assert "in leave_mpi" in ran.stderr


def assert_failed_in_the_step(output_dir: Path) -> None:
    failure = Failure.read(output_dir)
    assert failure is not None
    assert (failure.rank, failure.phase, failure.exit_code) == (1, "step", 3)
    assert "Net.training_step raised ValueError: no" in failure.traceback
