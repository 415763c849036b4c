"""The studies with learners of other frameworks run where torch cannot be imported at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.configs.smaller import NUM_SIMULATIONS, assert_learns_in_two_starts, run_smaller
from tests.configs.test_studies import assert_all_finished, first_and_last_loss

WITHOUT_TORCH = {"PYTHONPATH": str(Path(__file__).parent / "without_torch")}


def test_torch_really_cannot_be_imported_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=WITHOUT_TORCH, capture_output=True, text=True, check=False
    )
    assert "was imported where there is no torch" in done.stderr


def test_least_squares_with_numpy_learn_on_two_ranks(tmp_path: Path) -> None:
    settings = {"buffer.watermark": 200, "training.batch_size": 10, "validation.every_batches": 5}
    done = run_smaller("heat-numpy", tmp_path, settings, environment=WITHOUT_TORCH)
    assert_all_finished(done, num_simulations=NUM_SIMULATIONS + 1)
    assert done.account["trained"] == done.report["draws"] == 100 * NUM_SIMULATIONS
    first, last = first_and_last_loss(done)
    assert last < first / 3


@pytest.mark.full
def test_a_network_in_jax_learns_on_two_ranks_and_goes_on_on_one(tmp_path: Path) -> None:
    assert_learns_in_two_starts("heat-jax", tmp_path, WITHOUT_TORCH)
