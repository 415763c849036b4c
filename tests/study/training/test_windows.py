"""Studies whose samples are windows: exactly those whose steps all came are trained, whatever is killed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.killing import killed_at, model_of, run_through
from tests.support.runs import NUMPY_STUDY, Run, run_here, run_study

NUM_STEPS = 20
LENGTH = 3
WINDOWS: dict[str, Any] = {
    "samples": {"window": {"length": LENGTH, "spacing": 2, "stride": 3}},
    "server.class": "window_server.py:WindowServer",
    "buffer.routing": "simulations",
    "buffer.policy": "reservoir",
    "buffer.capacity": 16,
    "training.draws_per_sample": 2,
    "checkpoint.every_batches": 1,
    "validation.every_batches": None,
}

Window = tuple[int, ...]


def oracle(simulations: Iterable[int], missing: dict[int, set[int]] | None = None) -> set[Window]:
    """The windows of these simulations of which no step is missing: first the simulation, then its steps."""
    return {
        (simulation, start, start + 2, start + 4)
        for simulation in simulations
        for start in range(0, NUM_STEPS, 3)
        if {start, start + 2, start + 4} <= set(range(NUM_STEPS)) - (missing or {}).get(simulation, set())
    }


def neighbours(simulations: Iterable[int]) -> set[Window]:
    """The windows of two steps in a row."""
    return {(simulation, start, start + 1) for simulation in simulations for start in range(NUM_STEPS - 1)}


def trained_in(run: Run) -> set[Window]:
    files = run.output_dir.glob("windows-*.txt")
    return {tuple(map(int, line)) for file in files for line in np.loadtxt(file, int, ndmin=2).tolist()}


def assert_windows(run: Run, expected: set[Window], *, num_expected: int) -> None:
    """The account balances, and these windows alone were trained."""
    assert run.exit_code == 0, run.output
    assert run.report["balanced"]
    made = len(expected)
    impossible = num_expected - made
    assert run.account["windows"] == {"expected": num_expected, "made": made, "impossible": impossible, "late": 0}
    assert (run.account["trained"], run.account["untrained"]) == (made, 0)
    assert trained_in(run) == expected


@pytest.mark.parametrize(
    "policy", [pytest.param("firo", marks=pytest.mark.full), "fifo", pytest.param("reservoir", marks=pytest.mark.full)]
)
def test_each_window_of_a_study_is_trained(tmp_path: Path, policy: str) -> None:
    bound = WINDOWS["training.draws_per_sample"] if policy == "reservoir" else None
    settings = WINDOWS | {"buffer.policy": policy, "training.draws_per_sample": bound}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_windows(done, oracle(range(1, 7)), num_expected=6 * 6)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["buffer.drawn=kill@3"], marks=pytest.mark.full),
        pytest.param(["buffer.admitted=kill@9", "server.before_end=kill"], marks=pytest.mark.full),
        pytest.param(["checkpoint.part_written=kill@5"], marks=pytest.mark.full),
    ],
)
def test_a_study_of_windows_that_is_killed_trains_each_window(tmp_path: Path, points: list[str]) -> None:
    done = run_through(points, NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=WINDOWS)
    assert done.report["restarts"] == len(points)
    assert_windows(done, oracle(range(1, 7)), num_expected=6 * 6)


def test_a_study_of_windows_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    output_dir, settings = tmp_path / "run", WINDOWS | {"launcher.max_running": 3, "training.batch_size": 2}
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    killed_at("buffer.drawn=kill@4", NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    done = run_here(NUMPY_STUDY, output_dir, settings=settings)
    assert_windows(done, oracle(range(1, 7)), num_expected=6 * 6)


IN_TURN: dict[str, Any] = WINDOWS | {
    "samples": {"window": {"length": 2}},
    "training.draws_per_sample": None,
}


@pytest.mark.full
def test_windows_in_turn_are_trained_on_several_ranks_through_kills_and_other_numbers_of_ranks(
    tmp_path: Path,
) -> None:
    output_dir, settings = tmp_path / "run", IN_TURN | {"buffer.policy": "fifo", "checkpoint.record": True}
    killed_at("buffer.drawn=kill@5", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    killed_at("buffer.drawn=kill@9", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    done = run_here(NUMPY_STUDY, output_dir, settings=settings)
    assert_windows(done, neighbours(range(1, 7)), num_expected=6 * (NUM_STEPS - 1))
    replayed = run_here(NUMPY_STUDY, tmp_path / "again", settings=settings, arguments=["--replay", str(output_dir)])
    assert_windows(replayed, neighbours(range(1, 7)), num_expected=6 * (NUM_STEPS - 1))


@pytest.mark.full
def test_windows_are_trained_of_simulations_that_share_a_job(tmp_path: Path) -> None:
    settings = IN_TURN | {"buffer.policy": "fifo", "simulation.per_job": 2}
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings)
    assert_windows(done, neighbours(range(1, 7)), num_expected=6 * (NUM_STEPS - 1))


@pytest.mark.full
def test_windows_are_trained_at_random_though_nobody_knows_how_many_steps_come(tmp_path: Path) -> None:
    settings = IN_TURN | {"buffer.policy": "firo", "study.time_steps": None}
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings)
    assert_windows(done, neighbours(range(1, 7)), num_expected=6 * (NUM_STEPS - 1))


@pytest.mark.parametrize("policy", [pytest.param("firo", marks=pytest.mark.full), "fifo"])
def test_full_ranks_go_on_without_those_that_have_no_simulation(tmp_path: Path, policy: str) -> None:
    """One simulation at a time for three ranks, with more windows than a buffer has room for."""
    settings = IN_TURN | {
        "buffer.policy": policy,
        "buffer.capacity": 6,
        "training.batch_size": 2,
        "launcher.max_running": 1,
        "client.max_attached": 0,
    }
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=3, settings=settings)
    assert_windows(done, neighbours(range(1, 7)), num_expected=6 * (NUM_STEPS - 1))
    assert done.report["lonely_steps"] > 0
    assert done.output.count("1 simulation at once for 3 ranks") == 1


@pytest.mark.full
def test_a_model_that_needs_every_rank_at_each_step_is_refused_on_several_ranks(tmp_path: Path) -> None:
    settings = IN_TURN | {"server.class": "synchronised_server.py:SynchronisedServer", "training.uneven": "stop"}
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings)
    assert done.exit_code == 2
    assert "samples.window: a full rank takes steps without one that has no simulation" in done.output


def test_windows_with_a_rejected_step_and_of_a_simulation_that_ends_early_are_impossible(tmp_path: Path) -> None:
    command = ["python", "troubled.py", "not_finite", "2", "early", "3", "kill", "4", "invalid", "5"]
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=WINDOWS | {"simulation.command": command})
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    missing = {2: {10}, 3: set(range(10, NUM_STEPS)), 5: set(range(10, NUM_STEPS))}
    expected = oracle(range(1, 7), missing)
    account = done.account
    made = len(expected)
    assert account["windows"] == {"expected": 36, "made": made, "impossible": 36 - made, "late": 0}
    assert account["trained"] + account["withdrawn"] == made
    assert oracle([1, 2, 3, 4, 6], missing) <= trained_in(done) <= expected


@pytest.mark.full
def test_a_study_that_does_not_know_how_many_steps_come_trains_each_window(tmp_path: Path) -> None:
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=WINDOWS | {"study.time_steps": None})
    assert_windows(done, oracle(range(1, 7)), num_expected=6 * 6)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["reservoir", "firo"])
def test_a_replay_makes_the_same_windows_and_ends_with_the_same_weights_after_a_kill(
    tmp_path: Path, policy: str
) -> None:
    settings = WINDOWS | {"buffer.policy": policy, "buffer.capacity": 12, "training.batch_size": 2}
    settings["checkpoint.record"] = True
    if policy == "firo":
        settings["training.draws_per_sample"] = None
    recorded = run_here(NUMPY_STUDY, tmp_path / "recorded", settings=settings)
    assert_windows(recorded, oracle(range(1, 7)), num_expected=6 * 6)
    options: dict[str, Any] = {"settings": settings, "arguments": ["--replay", str(tmp_path / "recorded")]}
    whole = run_here(NUMPY_STUDY, tmp_path / "whole", **options)
    assert_windows(whole, oracle(range(1, 7)), num_expected=6 * 6)
    for point in ("buffer.drawn=kill@7", "checkpoint.renamed=kill@2"):
        killed_at(point, NUMPY_STUDY, tmp_path / "again", mpi=None, **options)
    again = run_here(NUMPY_STUDY, tmp_path / "again", **options)
    assert_windows(again, oracle(range(1, 7)), num_expected=6 * 6)
    assert again.report["validation"] == whole.report["validation"]
    assert model_of(again.output_dir) == model_of(whole.output_dir)
