"""Studies that forecast whole held-out trajectories: their errors are those of a computation beside the study."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stream_server.analysis.plot import pictures_of
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation
from stream_server.studies.run import Run as FinishedRun
from tests.study.numpy_study.ripple import signal_at
from tests.study.rollout_study.travelling import field_at
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, run_here, run_study

OPERATOR_STUDY = NUMPY_STUDY.parent.parent / "rollout_study" / "study.json"
NUM_HELD_OUT = 4
ROLLOUTS: dict[str, Any] = {
    "samples": {"window": {"length": 3, "spacing": 2}},
    "server.class": "rollout_server.py:RolloutServer",
    "buffer.routing": "simulations",
    "buffer.policy": "reservoir",
    "buffer.capacity": 30,
    "training.draws_per_sample": 2,
    "checkpoint.every_batches": 2,
    "study.simulations": 4,
    "validation.simulations": NUM_HELD_OUT,
    "validation.batch_size": 3,
    # Three samples of windows are validated: a rank may have none, and forecasts the simulations that it has.
    "validation.max_batches": 1,
    "validation.rollout": {"fields": ["signal"], "horizon": 7},
}

Array = NDArray[Any]


def held_out_parameters(run: Run, num: int) -> Iterator[dict[str, float]]:
    with (run.output_dir / "parameters.csv").open() as file:
        for row in csv.DictReader(file):
            if int(row.pop("simulation")) < num:
                yield {name: float(value) for name, value in row.items()}


def forecast(step: Callable[[list[Array]], Array], truth: Array, num_given: int) -> list[float]:
    """The squared error of each forecast along one trajectory."""
    known = [*truth[:num_given]]
    while len(known) < len(truth):
        known.append(step(known[-num_given:]))
    return [float(np.mean((a - b) ** 2)) for a, b in zip(known[num_given:], truth[num_given:], strict=True)]


def assert_rollouts(run: Run) -> None:
    """The errors are those of the weights with which the training ended."""
    assert run.exit_code == 0, run.output
    weights = np.load(run.output_dir / "weights.npy")
    errors = []
    for parameters in held_out_parameters(run, NUM_HELD_OUT):
        truth = np.array([signal_at(step, parameters) for step in range(0, 20, 2)])[:9]
        errors.append(forecast(lambda known: np.append(1, np.concatenate(known)) @ weights, truth, num_given=2))
    found = run.report["rollout"]
    assert found["batch"] == run.report["batches"]
    assert found["lead_times"] == [2, 4, 6, 8, 10, 12, 14]
    assert found["num_trajectories"] == [NUM_HELD_OUT] * 7
    assert found["mse"]["signal"] == pytest.approx(np.mean(errors, axis=0), rel=1e-4)
    last = run.report["validation"][-1]
    assert last["rollout"]["signal"] == pytest.approx(np.mean(errors), rel=1e-4)
    recorded = read_validation(RunFolder(run.output_dir))
    assert recorded is not None
    assert recorded.rollouts is not None
    assert recorded.rollouts.simulations.tolist() == list(range(NUM_HELD_OUT))
    assert recorded.rollouts.mse["signal"] == pytest.approx(np.array(errors), rel=1e-4)
    lines = map(json.loads, (run.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines())
    rows = [line for line in lines if "val/rollout/signal" in line]
    assert rows[-1]["val/rollout/signal/lead_10"] == pytest.approx(np.mean(errors, axis=0)[4], rel=1e-4)


@pytest.mark.parametrize(
    ("num_ranks", "mpi"),
    [
        pytest.param(1, None, marks=pytest.mark.full),
        pytest.param(2, "openmpi", marks=pytest.mark.full),
        pytest.param(3, "mpich", marks=pytest.mark.full),
    ],
)
def test_held_out_trajectories_are_forecast_by_the_model_of_the_moment(
    run: Callable[..., Run], num_ranks: int, mpi: str | None
) -> None:
    done = run(num_ranks=num_ranks, mpi=mpi, settings=ROLLOUTS | {"launcher.max_running": 3})
    assert_rollouts(done)
    assert "squared error at lead time 2 -> 14, of 4 held-out simulations" in done.output


@pytest.mark.full
def test_a_study_that_is_killed_within_a_rollout_forecasts_on_another_number_of_ranks(tmp_path: Path) -> None:
    output_dir, settings = tmp_path / "run", ROLLOUTS | {"launcher.max_running": 3}
    killed_at("rollout.before_step=kill@5", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    done = run_here(NUMPY_STUDY, output_dir, settings=settings)
    assert_rollouts(done)
    assert "squared error at lead time 2 -> 14, of 4 held-out simulations" in done.output


@pytest.mark.full
@pytest.mark.parametrize(
    "num_ranks", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]
)
def test_an_operator_that_is_trained_on_windows_is_rolled_out(tmp_path: Path, num_ranks: int) -> None:
    if num_ranks == 1:
        done = run_here(OPERATOR_STUDY, tmp_path / "run")
    else:
        settings = {"launcher.max_running": num_ranks}
        done = run_study(OPERATOR_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=settings)
    assert done.exit_code == 0, done.output
    server = FinishedRun(done.output_dir).server()
    mean, std = float(server.normalization.mean["u"]), float(server.normalization.std["u"])

    def step(known: list[Array]) -> Array:
        with torch.no_grad():
            output = server.model(torch.tensor((known[-1] - mean) / std, dtype=torch.float32)[None])
        return output[0].double().numpy() * std + mean

    errors = [
        forecast(step, np.array([field_at(time_step, parameters) for time_step in range(12)]), num_given=1)
        for parameters in held_out_parameters(done, 3)
    ]
    found = done.report["rollout"]
    assert found["num_trajectories"] == [3] * 11
    assert found["mse"]["u"] == pytest.approx(np.mean(errors, axis=0), rel=1e-3)
    # It has learned to forecast: less than the variance of the field after one step, and worse later on.
    assert found["mse"]["u"][0] < 0.1 * std**2
    assert found["mse"]["u"][0] < found["mse"]["u"][-1]
    assert "rollout-u" in [picture.name for picture in pictures_of(RunFolder(done.output_dir))]
    lines = (done.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert any("val/rollout/u/lead_11" in json.loads(line) for line in lines)
