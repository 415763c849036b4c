"""The data have a seed of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stream_server.config import load
from stream_server.server.run.build import make_policy
from stream_server.server.simulations.design import ParameterDesign
from tests.study.restarts.test_replay import SETTINGS
from tests.study.training.test_plain_loop import NAMED
from tests.support.runs import NUMPY_STUDY, Run, overrides, run_here

pytestmark = pytest.mark.slow


def data_of(**seeds: int) -> tuple[Any, Any]:
    """The parameters of each simulation, and the order in which a reservoir gives its samples."""
    settings = {"buffer.policy": "firo", **{f"study.{name}": value for name, value in seeds.items()}}
    config = load(NUMPY_STUDY, overrides(settings)[1::2])
    design, policy = ParameterDesign(config), make_policy(config, 1)
    policy.put(range(20))
    return [design.parameters(simulation) for simulation in range(7)], policy.draw(10).slots.tolist()


def test_parameters_and_buffers_have_the_seed_of_the_study_if_they_have_none() -> None:
    plain = data_of(seed=3)
    assert data_of(seed=3, data_seed=3) == data_of(seed=4, data_seed=3) == plain
    for other in data_of(seed=4), data_of(seed=3, data_seed=4):
        assert [it != mine for it, mine in zip(other, plain, strict=True)] == [True, True]


def replay(recorded: Run, folder: Path, **seeds: int) -> tuple[Any, Any]:
    """The batches of a replay in their order, and the weights with which it began."""
    settings = SETTINGS | NAMED | {f"study.{name}": value for name, value in seeds.items()}
    run = run_here(NUMPY_STUDY, folder, settings=settings, arguments=["--replay", str(recorded.output_dir)])
    assert run.exit_code == 0, run.output
    # setup_environment comes before __init__.
    assert (run.output_dir / "environment-0.txt").read_text() == "rank 0 of the study, 0 of its node, on ripple"
    with np.load(run.output_dir / "batches-0.npz") as batches:
        inputs = [batches[name].tolist() for name in sorted(batches.files)]
    return inputs, torch.load(run.output_dir / "before.pt", weights_only=True)["0.weight"].tolist()


def test_other_weights_learn_from_the_same_data(recorded: Run, tmp_path: Path) -> None:
    batches, weights = replay(recorded, tmp_path / "first", seed=3)
    same_batches, other_weights = replay(recorded, tmp_path / "second", seed=4, data_seed=3)
    other_batches, same_weights = replay(recorded, tmp_path / "third", seed=3, data_seed=4)
    assert batches == same_batches != other_batches
    assert weights == same_weights != other_weights
