"""The model that a study saves, and the one with which another study begins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as numpy_files

from tests.study.numpy_study.ripple import NUM_STEPS, PLACES
from tests.support.killing import copy_of, killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here, run_study

NORMALIZED: dict[str, Any] = {
    "server.class": "normalizing_server.py:NormalizingServer",
    "normalization": {"fields": ["signal", "energy"], "parameters": True, "per": "value", "every_batches": 3},
    "checkpoint.every_batches": 2,
    "study.simulations": 4,
    "buffer.policy": "reservoir",
}


def assert_has_the_statistics_of_all_samples(done: Run, num_held_out: int = 1) -> None:
    statistics = numpy_files.load_file(done.output_dir / "model" / "normalization.safetensors")
    table = np.genfromtxt(done.output_dir / "parameters.csv", delimiter=",", names=True)[num_held_out:]
    times = np.arange(NUM_STEPS) / NUM_STEPS
    parameters = np.repeat(np.column_stack((table["offset"], table["slope"])), NUM_STEPS, 0)
    signals = parameters[:, :1] + parameters[:, 1:] * PLACES + np.tile(times, len(table))[:, None]
    energies = np.sum(signals[::2] ** 2, 1, keepdims=True)
    for name, values in (("fields.signal", signals), ("fields.energy", energies), ("parameters", parameters)):
        assert np.all(statistics[f"{name}.count"] == len(values))
        np.testing.assert_allclose(statistics[f"{name}.mean"], values.mean(0), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(statistics[f"{name}.std"], values.std(0), rtol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["fifo", "reservoir"])
def test_statistics_are_those_of_all_samples_whatever_rank_they_went_to(run: Callable[..., Run], policy: str) -> None:
    done = run(num_ranks=2, settings=NORMALIZED | {"buffer.policy": policy})
    assert_complete(done, num_simulations=4)
    assert_has_the_statistics_of_all_samples(done)


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study that was killed when it had seen a part of its samples."""
    output_dir = tmp_path_factory.mktemp("half_way") / "run"
    return killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, output_dir, num_ranks=2, settings=NORMALIZED)


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_statistics_count_each_sample_once_over_a_restart(half_way: Run, tmp_path: Path, num_ranks: int) -> None:
    copy_of(half_way, tmp_path)
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=NORMALIZED)
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 1
    assert_has_the_statistics_of_all_samples(done)
    assert set(numpy_files.load_file(done.output_dir / "model" / "model.safetensors")) == {"weights"}


def test_a_study_starts_from_the_model_of_another(torch_restarted: Run, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "server.class": "torch_server.py:TinyServer",
        "study.simulations": 1,
        "training.batch_size": 10,
        "training.max_batches": 1,
        "load": {"checkpoint": str(torch_restarted.output_dir)},
    }
    second = run_here(NUMPY_STUDY, tmp_path / "second", settings=settings)
    assert second.exit_code == 0, second.output
    models = [
        numpy_files.load_file(done.output_dir / "model" / "model.safetensors") for done in (torch_restarted, second)
    ]
    assert set(models[0]) == set(models[1]) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    for name, values in models[0].items():
        # One update of Adam moves a weight by its learning rate at most.
        np.testing.assert_allclose(models[1][name], values, atol=0.011)
    log = (second.output_dir / "logs" / "server-0.log").read_text()
    assert "the study starts from" in log


def test_a_study_that_goes_on_does_not_start_from_another(tmp_path: Path) -> None:
    settings = NORMALIZED | {"load": {"checkpoint": str(tmp_path / "gone")}}
    refused = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert refused.exit_code == 2
    assert "load.checkpoint must be the output folder" in refused.output
