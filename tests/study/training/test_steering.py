"""Whole studies whose parameters a class suggests while they run."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here

LEARNING: dict[str, Any] = {"parameters.sampler": {"class": "learning_sampler.py:Evenly", "lookahead": 1}}
# Compares every sample with the parameters that the server knows.
STRICT = LEARNING | {"server.class": "strict_server.py:RippleServer"}


def rows(run: Run) -> list[dict[str, str]]:
    with (run.output_dir / "parameters.csv").open() as file:
        return list(csv.DictReader(file))


def warnings(run: Run) -> list[str]:
    return [it for it in run.report["warnings"] if "fallback" in it or "sampler" in it]


def parameters(run: Run) -> dict[int, tuple[float, float]]:
    return {int(row["simulation"]): (float(row["offset"]), float(row["slope"])) for row in rows(run)}


@pytest.mark.full
def test_a_class_that_dies_again_and_again_costs_no_simulation(tmp_path: Path) -> None:
    sampler = {"class": "learning_sampler.py:Dying", "lookahead": 1, "fallback": "halton"}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=STRICT | {"parameters.sampler": sampler})
    assert_complete(done, num_simulations=6)
    [warning] = warnings(done)
    assert "have parameters of the fallback (halton)" in warning
    assert "halton" in {row["proposed by"] for row in rows(done)}


def test_a_class_that_cannot_begin_ends_the_start_with_its_message(tmp_path: Path) -> None:
    sampler = {"class": "learning_sampler.py:Failing", "lookahead": 1}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=LEARNING | {"parameters.sampler": sampler})
    assert done.exit_code == 3, done.output
    assert "no data at all" in done.output
    assert "please report it" not in done.output


@pytest.mark.full
def test_a_server_that_is_killed_between_suggestion_and_start_gives_no_simulation_other_parameters(
    tmp_path: Path,
) -> None:
    settings = STRICT | {"checkpoint.every_batches": 2, "launcher.max_running": 1, "study.simulations": 4}
    before: dict[int, tuple[float, float]] = {}
    for place in ("suggester.before_log=kill", "suggester.after_log=kill@2"):
        killed = killed_at(place, NUMPY_STUDY, tmp_path / "run", mpi=None, settings=settings)
        after = parameters(killed)
        assert {i: after[i] for i in before} == before
        before = after
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_complete(done, num_simulations=4)
    after = parameters(done)
    assert {i: after[i] for i in before} == before
    assert len(set(after.values())) == 5


def test_a_redrawn_simulation_gets_new_parameters(tmp_path: Path) -> None:
    settings = {
        "simulation.command": ["python", "troubled.py", "crash", "3"],
        "simulation.on_failure": "redraw",
        "simulation.retries": 0,
        "study.simulations": 3,
    }
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=LEARNING | settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["simulations"]["finished"] == 4
    assert sorted(parameters(done)) == list(range(5))
    assert len(set(parameters(done).values())) == 5


def told(file: Path) -> list[dict[int, dict[str, float]]]:
    """The results that the class was given at each call, by the parameter `offset`, which no two simulations share."""
    return [{row["offset"]: row for row in json.loads(line)} for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_simulations_get_their_parameters_one_after_the_other_and_the_class_is_told_their_losses_on_all_ranks(
    run: Callable[..., Run], tmp_path: Path, num_ranks: int
) -> None:
    file = tmp_path / "told"
    sampler = {"class": "learning_sampler.py:Telling", "args": {"file": str(file)}, "lookahead": 1}
    settings = {
        "parameters.sampler": sampler,
        "server.class": "uneven_server.py:UnevenServer",
        "launcher.max_running": 1,
        "training.log_every_batches": 1,
    }
    done = run(num_ranks=num_ranks, settings=settings)
    assert_complete(done, num_simulations=6)
    assert [int(row["simulation"]) for row in rows(done)] == list(range(7))
    assert {row["proposed by"] for row in rows(done)} == {"learning_sampler.py:Telling"}
    assert len(set(parameters(done).values())) == 7
    # The held-out one and the first were suggested before any simulation ran.
    assert len({row["proposed at"] for row in rows(done)}) >= 6
    assert warnings(done) == []
    trained = {offset: slope for i, (offset, slope) in parameters(done).items() if i > 0}
    newest: dict[float, dict[str, float]] = {}
    for results in told(file):
        newest |= results
    # Simulation 0 is held out; its loss is known, and it is never trained on.
    [held_out] = {offset for offset in newest if offset == parameters(done)[0][0]} or [None]
    if held_out is not None:
        row = newest.pop(held_out)
        assert (row["held_out"], row["validation_loss"], row["num_losses"]) == (1, 0.25, 0)
        assert row["loss"] != row["loss"]
    # The last ones may be asked for before anything is known of those before them.
    assert len(newest) >= 2
    assert newest.keys() <= trained.keys()
    for offset, row in newest.items():
        assert row["loss"] == row["first_loss"] == (5.0 if offset > 0.5 else 1.0)
        assert row["steepness"] == pytest.approx(trained[offset])
        assert 1 <= row["num_losses"] <= 20
        assert (row["failed"], row["held_out"]) == (0, 0)


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_a_simulation_that_teaches_nothing_more_is_stopped_and_the_account_balances(
    run: Callable[..., Run], num_ranks: int
) -> None:
    settings = {
        "server.class": "stopping_server.py:StoppingServer",
        "simulation.command": ["python", "paced.py", "0.1"],
        "launcher.max_running": 6,
    }
    done = run(num_ranks=num_ranks, settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    low = [i for i, (offset, _) in parameters(done).items() if offset < 0 and i > 0]
    counts = done.report["simulations"]
    assert low
    assert (counts["stopped_early"], counts["finished"], counts["failed"]) == (len(low), 7 - len(low), 0)
    assert (done.report["failures"], done.report["retried"], done.report["failed_later"]) == ([], [], [])
    assert set(done.attempts.values()) == {1}
    missing = done.report["samples"]["never_produced"]
    assert set(missing) == {f"simulation {i}: stopped early (its offset is low)" for i in low}
    assert all(0 < num <= 17 for num in missing.values())
    assert f"{len(low)} stopped early" in done.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_simulations", "num_around", "mean_above"), [(16, 1, -0.1), pytest.param(32, 5, 0.45, marks=pytest.mark.full)]
)
def test_breed_puts_simulations_where_the_loss_is_high(
    tmp_path: Path, num_simulations: int, num_around: int, mean_above: float
) -> None:
    sampler = {"class": "breed", "args": {"generation": 4, "first_share": 0.7, "share": 0.9}, "lookahead": 1}
    settings = {
        "parameters.sampler": sampler,
        "server.class": "uneven_server.py:UnevenServer",
        "study.simulations": num_simulations,
        # A batch has steps of at least two simulations, so that hard ones stand out.
        "training.batch_size": 30,
        "buffer.capacity": 100,
        "training.log_every_batches": 1,
    }
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_complete(done, num_simulations=num_simulations)
    # Only simulations in the hard quarter of the range are ever above their batch.
    around = [float(row["offset"]) for row in rows(done) if row["score"]]
    assert len(around) >= num_around
    assert min(around) > -0.1, "more than three standard deviations away"
    assert sum(around) / len(around) > mean_above
    assert warnings(done) == []
