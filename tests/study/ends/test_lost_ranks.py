"""Code that ends the process of a rank does not end a study well, whatever the exit code."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.support.runs import LiveRun

full = pytest.mark.full


@pytest.mark.parametrize(
    ("method", "rank", "way", "mpi"),
    [
        ("training_step", 1, "os._exit", "mpich"),
        ("training_step", 0, "exit", None),
        pytest.param("training_step", 1, "os._exit", "openmpi", marks=full),
        # Nobody is left to notice.
        pytest.param("training_step", -1, "exit", "mpich", marks=full),
        pytest.param("training_step", -1, "exit", "openmpi", marks=full),
        pytest.param("prepare_training_attributes", 0, "os._exit", "mpich", marks=full),
    ],
)
def test_a_rank_that_exits_with_0_ends_the_study_with_a_code_and_its_reason(
    start: Callable[..., AbstractContextManager[LiveRun]], method: str, rank: int, way: str, mpi: str | None
) -> None:
    user = {"trouble": method, "rank": rank, "way": way}
    settings = {"server.class": "exiting_server.py:ExitingServer", "user": user}
    with start(num_ranks=1 if mpi is None else 2, mpi=mpi, settings=settings) as live:
        done = live.end()
    assert done.exit_code != 0
    failure = json.loads((done.output_dir / "exit.json").read_text())
    assert failure["rank"] == rank or rank == -1
    assert failure["exit_code"] == 7
    # C's exit takes down what other threads use, which may crash.
    crashed = way == "exit" and "was killed by SIG" in failure["message"]
    assert crashed or "ended with exit code 0 before the command was done" in failure["message"]
    assert failure["message"] in done.output
