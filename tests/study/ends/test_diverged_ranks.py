"""Ranks that no longer hold the same weights end the study, with the name of the weights, and save nothing of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.killing import checkpoints
from tests.support.runs import Run

SAVED_OFTEN = {"checkpoint.every_batches": 2, "training.batch_size": 1}
NUMPY = {"server.class": "diverging_server.py:DivergingServer"}
TORCH = {"server.class": "torch_diverging_server.py:DivergingServer"}


@pytest.mark.parametrize(
    ("server", "name", "num", "mpi"),
    [
        pytest.param(NUMPY, "weights", "1 of 1", "openmpi", id="numpy"),
        pytest.param(TORCH, "3.bias", "1 of 4", "mpich", id="torch", marks=pytest.mark.full),
    ],
)
def test_a_weight_that_one_rank_changes_is_found_at_the_next_checkpoint_which_is_not_committed(
    run: Callable[..., Run], server: dict[str, Any], name: str, num: str, mpi: str
) -> None:
    done = run(num_ranks=2, mpi=mpi, settings=server | SAVED_OFTEN)
    assert_diverged(done, name, num)
    failure = json.loads((done.output_dir / "exit.json").read_text())
    assert (failure["phase"], failure["exit_code"]) == ("training", 8)
    assert failure["batch"] > 0
    diverged = int((done.output_dir / "diverged").read_text())
    assert 0 < max(batches_of_checkpoints(done)) < diverged <= failure["batch"]


@pytest.mark.full
def test_a_weight_that_one_rank_changes_after_the_last_checkpoint_is_found_at_the_end(run: Callable[..., Run]) -> None:
    done = run(num_ranks=2, settings=NUMPY | {"study.simulations": 2, "user.diverge_at": 4, "checkpoint.every_s": 600})
    assert_diverged(done, "weights", "1 of 1")
    assert not checkpoints(done.output_dir)
    assert not (done.output_dir / "model").exists()


def batches_of_checkpoints(done: Run) -> list[int]:
    """The number of batches before each checkpoint that is committed."""
    manifests = (done.output_dir / "checkpoints").glob("*/manifest.json")
    return [json.loads(file.read_text())["batches"] for file in manifests]


def assert_diverged(done: Run, name: str, num: str) -> None:
    assert done.exit_code != 0
    assert done.report["exit_code"] == 8
    said = f"the ranks have diverged: {name} is not the same on rank 1 as on rank 0; in all, {num} arrays differ"
    assert said in done.report["message"]
    assert said in done.output
