"""Simulations that were given up are tried again once their bug is repaired, and each sample is trained once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here, run_study


def settings(repaired: Path, num_simulations: int = 6, victims: Sequence[int] = (3, 5)) -> dict[str, Any]:
    """Some simulations crash half-way until the file is there."""
    return {
        "study.simulations": num_simulations,
        "simulation.command": ["python", "crashing.py", str(repaired), *map(str, victims)],
        "simulation.retries": 0,
        "launcher.max_running": 1,
    }


def test_given_up_simulations_of_a_finished_study_are_tried_again_when_it_is_told_to(tmp_path: Path) -> None:
    def run(*arguments: str) -> Run:
        return run_study(NUMPY_STUDY, tmp_path / "run", settings=changes, arguments=arguments)

    def refused_or_over(*arguments: str) -> Run:
        return run_here(NUMPY_STUDY, tmp_path / "run", settings=changes, arguments=arguments)

    repaired = tmp_path / "repaired"
    changes = settings(repaired, 3, victims=(2, 3))
    done = run()
    assert (done.exit_code, done.report["simulations"]["given_up"]) == (0, 2)
    assert (done.account["expected"], done.account["accepted"]) == (60, 40)
    repaired.touch()
    assert "is finished" in refused_or_over().output
    wrong = refused_or_over("--retry", "1", "3")
    assert wrong.exit_code == 2
    assert "--retry 1: expected simulations that were given up, which are: 2, 3" in wrong.output

    one = run("--retry", "3")
    assert (one.exit_code, one.report["simulations"]["given_up"]) == (0, 1)
    assert [it["id"] for it in one.report["failures"]] == [2]
    assert [it["id"] for it in one.report["retried"]] == [3]
    both = run("--retry")
    assert_complete(both, num_simulations=3)
    # Their clients send all of it once more, and what is known is dropped.
    assert (both.account["duplicates"], both.account["trained"]) == (20, 60)
    assert both.account["never_produced"] == {}
    assert both.attempts == {0: 1, 1: 1, 2: 2, 3: 2}
    assert "is finished" in refused_or_over("--retry").output


@pytest.mark.full
def test_the_order_to_try_again_outlives_a_crash_and_a_change_of_the_ranks(tmp_path: Path) -> None:
    repaired, output_dir = tmp_path / "repaired", tmp_path / "run"
    options: dict[str, Any] = {"settings": settings(repaired)}
    assert run_study(NUMPY_STUDY, output_dir, num_ranks=2, **options).report["simulations"]["given_up"] == 2
    repaired.touch()
    killed_at("incarnations.appended=kill", NUMPY_STUDY, output_dir, num_ranks=2, arguments=["--retry"], **options)
    again = run_study(NUMPY_STUDY, output_dir, **options)
    assert_complete(again, num_simulations=6)
    assert again.account["trained"] == 120


@pytest.mark.full
def test_stream_launcher_tries_again_what_too_many_failures_have_left(tmp_path: Path) -> None:
    repaired, output_dir = tmp_path / "repaired", tmp_path / "run"
    options: dict[str, Any] = {
        "program": "stream-launcher",
        "settings": settings(repaired) | {"simulation.max_failed": 0.2, "checkpoint.every_batches": 1},
    }
    done = run_study(NUMPY_STUDY, output_dir, **options)
    assert done.exit_code == 4, done.output
    repaired.touch()
    assert_complete(run_study(NUMPY_STUDY, output_dir, arguments=["--retry"], **options), num_simulations=6)
