"""A study whose batches a loader of the user's makes: filtered, mixed with an earlier file, killed, on other ranks."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.killing import killed_at, model_of, run_through
from tests.support.runs import NUMPY_STUDY, Run, run_here

NUM_EARLIER = 6


@pytest.fixture
def loaded(tmp_path: Path) -> dict[str, Any]:
    """The settings of such a study, with samples of an earlier one in an HDF5 file."""
    random = np.random.default_rng(3)
    with h5py.File(tmp_path / "earlier.h5", "w") as file:
        file["inputs"] = random.random((NUM_EARLIER, 3))
        file["signal"] = random.random((NUM_EARLIER, 8))
    return {
        "server.class": "loading_server.py:LoadingServer",
        "user.earlier": str(tmp_path / "earlier.h5"),
        "checkpoint.every_batches": 2,
    }


def assert_all_accounted_for(run: Run, num_simulations: int) -> None:
    """Of 20 steps of each simulation, the filter leaves out every fifth."""
    assert run.exit_code == 0, run.output
    account = run.account
    assert run.report["balanced"] is True
    assert account["accepted"] == 20 * num_simulations
    assert account["dropped"] == 4 * num_simulations
    assert account["trained"] == 16 * num_simulations
    assert account["untrained"] == account["withdrawn"] == account["skipped"] == 0
    # One for each second sample that is kept; every start of a loader begins to count anew.
    assert abs(account["added"] - account["trained"] / 2) <= 8


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_study_that_is_killed_trains_drops_and_adds_each_sample_once(
    tmp_path: Path, loaded: dict[str, Any], num_ranks: int
) -> None:
    points = ["server.trained=kill@6"]
    done = run_through(points, NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=loaded)
    assert done.report["restarts"] == 1
    assert_all_accounted_for(done, num_simulations=6)


@pytest.mark.full
def test_killed_with_batches_made_ahead_it_goes_on_with_another_number_of_ranks(
    tmp_path: Path, loaded: dict[str, Any]
) -> None:
    settings = loaded | {"checkpoint.every_batches": 1, "study.simulations": 4}
    ahead = settings | {"training.prefetch": 2}
    killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=ahead)
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_all_accounted_for(done, num_simulations=4)


@pytest.mark.full
def test_a_replay_learns_the_same_again_also_with_batches_made_ahead(
    recorded: Run, tmp_path: Path, loaded: dict[str, Any]
) -> None:
    settings = loaded | {"study.simulations": 4, "buffer.capacity": 20}
    arguments = ["--replay", str(recorded.output_dir)]
    whole = run_here(NUMPY_STUDY, tmp_path / "whole", settings=settings, arguments=arguments)
    assert_all_accounted_for(whole, num_simulations=4)
    assert "prefetch" not in whole.report["phases_s"]
    ahead = settings | {"training.prefetch": 2}
    again = run_here(NUMPY_STUDY, tmp_path / "again", settings=ahead, arguments=arguments)
    assert model_of(again.output_dir) == model_of(whole.output_dir)
    assert again.account == whole.account
    assert again.report["phases_s"]["prefetch"] > 0
