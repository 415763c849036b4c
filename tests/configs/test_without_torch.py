"""The studies with learners of other frameworks run where torch cannot be imported at all."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.configs.test_studies import CONFIGS, assert_all_finished, first_and_last_loss
from tests.support.runs import Run, run_study

WITHOUT_TORCH = {"PYTHONPATH": str(Path(__file__).parent / "without_torch")}
NUM_SIMULATIONS = 5
FEWER = {
    "study.simulations": NUM_SIMULATIONS,
    "study.fields.temperature.shape": [10, 10],
    "validation.simulations": 1,
    "simulation.command": [
        *("python", "../heat/heat.py", "--size", "10"),
        *(word for name in ("initial", "left", "right", "bottom", "top") for word in (f"--{name}", f"{{{name}}}")),
    ],
}


def run_on_two_ranks(name: str, tmp_path: Path, settings: dict[str, Any]) -> Run:
    return run_study(
        CONFIGS / name / "study.json",
        tmp_path / "run",
        num_ranks=2,
        settings=FEWER | settings,
        environment=WITHOUT_TORCH,
        limit_s=100,
    )


def test_torch_really_cannot_be_imported_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=WITHOUT_TORCH, capture_output=True, text=True, check=False
    )
    assert "was imported where there is no torch" in done.stderr


def test_least_squares_with_numpy_learn_on_two_ranks(tmp_path: Path) -> None:
    settings = {"buffer.watermark": 200, "training.batch_size": 10, "validation.every_batches": 5}
    done = run_on_two_ranks("heat-numpy", tmp_path, settings)
    assert_all_finished(done, num_simulations=NUM_SIMULATIONS + 1)
    assert done.account["trained"] == done.report["draws"] == 100 * NUM_SIMULATIONS
    first, last = first_and_last_loss(done)
    assert last < first / 3


@pytest.mark.full
def test_a_network_in_jax_learns_on_two_ranks(tmp_path: Path) -> None:
    settings = {"training.batch_size": 20, "training.draws_per_sample": 4, "validation.every_batches": None}
    done = run_on_two_ranks("heat-jax", tmp_path, settings | {"validation.at": [2]})
    assert_all_finished(done, num_simulations=NUM_SIMULATIONS + 1)
    first, last = first_and_last_loss(done)
    assert last < first / 3
