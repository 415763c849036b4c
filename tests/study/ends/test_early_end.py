"""Studies that end before all is trained, because they were told to."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import Run

ENDLESS: dict[str, Any] = {"simulation.command": ["python", "endless.py"], "study.time_steps": None}


def assert_ended_early(done: Run, reason: str, message: str) -> None:
    """The simulations and the launcher were told why, and what is left was counted."""
    assert done.exit_code == 0, done.output
    report, account = done.report, done.account
    assert (report["exit_code"], report["exit_reason"]) == (0, reason)
    assert message in report["message"]
    assert report["balanced"] is True
    assert report["simulations"]["stopped"] == 7
    assert account["accepted"] == account["trained"] + account["untrained"]
    assert set(account["untrained_reasons"]) <= {reason}
    # On a busy machine the study may be over before the second one has sent anything.
    begun = [log for log in (done.log(0), done.log(1)) if "running" in log]
    assert begun
    for log in begun:
        assert "not wanted any more" in log
        assert message in log
    assert message in done.launcher_log


# The end of a training that has converged is below.
@pytest.mark.parametrize(
    ("settings", "num_ranks", "mpi", "reason", "message"),
    [
        pytest.param(
            {"user": {"trouble": None, "stop_at": 5}}, 2, "mpich", "early_stop", "good enough", marks=pytest.mark.full
        ),
        pytest.param(
            {"training.max_batches": 6}, 2, "mpich", "max_batches", "training.max_batches", marks=pytest.mark.full
        ),
        pytest.param({"training.max_s": 4}, 1, None, "max_s", "training.max_s", marks=pytest.mark.full),
    ],
)
def test_a_study_that_ends_early_tells_its_simulations_and_counts_what_is_left(
    run: Callable[..., Run], settings: dict[str, Any], num_ranks: int, mpi: str | None, reason: str, message: str
) -> None:
    done = run(num_ranks=num_ranks, mpi=mpi, settings=ENDLESS | settings)
    assert_ended_early(done, reason, message)
    if reason != "max_s":
        assert done.report["batches"] == 6


@pytest.mark.full
def test_a_study_may_end_with_the_first_rank_that_has_no_more_data(run: Callable[..., Run]) -> None:
    """17 samples on 2 ranks in batches of 4: the ranks have 9 and 8 of them."""
    settings = {"study.simulations": 1, "study.time_steps": 17, "training.uneven": "stop"}
    done = run(num_ranks=2, settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["exit_reason"] == "finished"
    assert done.report["balanced"] is True
    assert done.account["accepted"] == 17
    assert done.account["trained"] + done.account["untrained"] == 17
    assert set(done.account["untrained_reasons"]) <= {"uneven"}


def test_a_training_that_has_converged_ends_the_study_and_tells_the_simulations(run: Callable[..., Run]) -> None:
    early_stop = {"monitor": "train/loss", "patience": 3, "min_delta": 1e9}
    settings = {"training.early_stop": early_stop, "training.log_every_batches": 2}
    done = run(num_ranks=2, mpi="openmpi", settings=ENDLESS | settings)
    reason = "training converged: train/loss has not fallen by 1e+09 for 3 log points"
    assert_ended_early(done, "early_stop", reason)
