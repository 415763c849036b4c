"""The record of a validation: which samples are rendered, and what is kept of them, in and beside a study."""

import csv
import logging
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation, recorded_batches
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.validation.validation_record import (
    MAX_VALUES,
    ValidationRecord,
    batches_to_keep,
    choose,
    squared_errors,
    thinned,
)
from stream_server.server.user.rendering import Prediction, render
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.server.training.validating import Model, Server, validation
from tests.support.runs import run_study

STUDY = Path(__file__).parent.parent.parent / "study" / "numpy_study"


class Doubling(StreamServer):
    """Predicts twice the truth."""

    parameter_names = ("p",)

    def predict(self, batch: Any) -> Any:
        return 2 * batch[1]


class Raising(Doubling):
    """Cannot render."""

    def render(self, sample: Any, prediction: Prediction) -> Any:
        raise ZeroDivisionError("no picture")


def samples(num: int) -> SimulationBatch:
    return SimulationBatch(
        simulation_ids=np.arange(num) // 2,
        time_steps=np.arange(num) % 2,
        parameters=np.full((num, 1), 7.0),
        fields={"x": np.arange(1.0, 1 + 4 * num).reshape(num, 2, 2)},
        present={"x": np.ones(num, bool)},
    )


def record(folder: Path, server: StreamServer, raw: SimulationBatch, batch: int = 10, **options: Any) -> None:
    server.parameter_names = ("p",)
    one = ValidationRecord(folder / "validations", server, SoloRanks(), num=2, facts={"units": {"x": "K"}}, **options)
    one.begin("set", raw)
    one.observe(raw, (raw.parameters, raw.fields["x"].reshape(len(raw), -1)))
    one.write(batch, {"loss": 0.5}, [])


def test_chosen_samples_are_spread_over_simulations_and_time_steps() -> None:
    keys = [(simulation, step) for simulation in range(6) for step in range(100)]
    assert choose(keys, 3) == [[0, 16], [2, 50], [4, 83]]


def test_no_sample_is_chosen_twice_and_none_where_there_is_none() -> None:
    assert choose([(0, 5)], 4) == [[0, 5]]
    assert choose([], 4) == []


def test_the_first_the_best_and_the_newest_records_stay() -> None:
    history = [{"batch": batch} for batch in range(100)]
    assert set(batches_to_keep(history, {"batch": 40})) == {0, 40, *range(90, 100)}


def test_large_fields_are_thinned() -> None:
    assert 0 < thinned(np.zeros((1000, 2000))).size <= MAX_VALUES
    assert thinned(np.zeros((3, 2))).shape == (3, 2)


def test_an_output_without_a_target_of_its_size_has_no_error() -> None:
    assert np.isnan(squared_errors(np.zeros((2, 3)), np.zeros((2, 4)))).all()
    assert squared_errors(np.zeros((2, 3)), np.full((2, 3), 2.0)).tolist() == [4.0, 4.0]


def test_a_prediction_is_kept_in_the_shape_of_its_field_with_its_simulation_and_parameters(tmp_path: Path) -> None:
    raw = samples(4)
    record(tmp_path, Doubling(), raw)
    found = read_validation(RunFolder(tmp_path))
    assert found is not None
    assert (found.batch, found.values, found.units, found.is_whole) == (10, {"loss": 0.5}, {"x": "K"}, True)
    assert [(it.simulation, it.time_step, it.parameters) for it in found.samples] == [
        (0, 0, {"p": 7}),
        (1, 1, {"p": 7}),
    ]
    truth, prediction = found.samples[1].shown["x"]
    assert truth.tolist() == raw.fields["x"][3].tolist()
    assert prediction.tolist() == (2 * raw.fields["x"][3]).tolist()
    squares = np.mean(raw.fields["x"] ** 2, axis=(1, 2))
    assert found.by_simulation() == pytest.approx({0: squares[:2].mean(), 1: squares[2:].mean()})
    assert found.by_time_step() == pytest.approx({0: squares[::2].mean(), 1: squares[1::2].mean()})


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_target_that_is_a_field_only_after_scaling_is_brought_back_to_its_unit(scale: float) -> None:
    field = np.arange(1.0, 7.0).reshape(2, 3)
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"x": field})
    prediction = Prediction(output=scale * field.reshape(-1) + scale, target=scale * field.reshape(-1))
    truth, predicted = render(sample, prediction, lambda name, array: array / scale)["x"]
    np.testing.assert_allclose(truth, field)
    np.testing.assert_allclose(predicted, field + 1)


def test_a_target_that_is_no_field_is_shown_beside_the_output_as_it_is() -> None:
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"x": np.arange(3.0)})
    change = np.full(3, 0.1)
    shown = render(sample, Prediction(output=change + 1, target=change), lambda name, array: array)
    assert list(shown) == ["output"]
    assert shown["output"][0].tolist() == change.tolist()


def test_a_render_that_raises_costs_the_pictures_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    record(tmp_path, Raising(), samples(4))
    found = read_validation(RunFolder(tmp_path))
    assert found is not None
    assert (found.samples, len(found.errors)) == ((), 4)
    assert [it.getMessage() for it in caplog.records] == [
        "no prediction is kept: Raising.render raised ZeroDivisionError: no picture"
    ]


def test_a_render_that_raises_is_an_error_of_a_trial(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"Raising\.render raised ZeroDivisionError"):
        record(tmp_path, Raising(), samples(4), is_strict=True)


def test_a_prediction_that_draws_random_numbers_takes_none_from_the_training(tmp_path: Path) -> None:
    drawn = []

    class Drawing(Server):
        parameter_names = ("p",)

        def predict(self, batch: Any) -> Any:
            drawn.append(random.random())
            return batch

        def render(self, sample: Any, prediction: Prediction) -> Any:
            return {}

    class Seeded(Model):
        def random_state(self) -> dict[str, Any]:
            return {"python": random.getstate()}

        def load_random_state(self, state: dict[str, Any]) -> None:
            random.setstate(state["python"])

    server = Drawing()
    kept = ValidationRecord(tmp_path, cast("StreamServer", server), SoloRanks(), num=1, facts={})
    random.seed(1)
    before = random.getstate()
    one = validation(server, values=[1.0, 2.0, 3.0], step=Seeded(), record=kept)
    one.run()
    assert len(drawn) == 2
    assert random.getstate() == before


def test_records_that_need_not_stay_are_removed(tmp_path: Path) -> None:
    for batch in (10, 20):
        record(tmp_path, Doubling(), samples(2), batch)
    assert recorded_batches(RunFolder(tmp_path)) == [20]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    record(tmp_path, Doubling(), samples(2))
    file = next((tmp_path / "validations").iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"batch-000010-rank-0\.npz is damaged"):
        read_validation(RunFolder(tmp_path))


@pytest.mark.slow
def test_two_ranks_record_what_the_exported_model_predicts(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from torch import nn

    settings = {"server.class": "torch_server.py:TinyServer", "validation.simulations": 2, "validation.pictures": 3}
    run = run_study(STUDY / "study.json", tmp_path / "run", num_ranks=2, settings=settings)
    assert run.exit_code == 0, run.output
    found = read_validation(RunFolder(run.output_dir))
    assert found is not None
    assert found.is_whole
    assert {path.name[-10:-4] for path in (run.output_dir / "validations").iterdir()} == {"rank-0", "rank-1"}

    model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 8)).eval()
    model.load_state_dict(load_file(run.output_dir / "model" / "model.safetensors"))
    with (run.output_dir / "parameters.csv").open() as file:
        design = [(float(row["offset"]), float(row["slope"])) for row in csv.DictReader(file)]

    def predicted(simulation: int, step: int) -> tuple[Any, Any]:
        offset, slope = design[simulation]
        with torch.no_grad():
            output = model(torch.tensor([offset, slope, step / 20], dtype=torch.float32))
        return offset + slope * np.arange(8) / 8 + step / 20, output.numpy()

    pairs = list(zip(found.simulations.tolist(), found.time_steps.tolist(), strict=True))
    assert sorted(pairs) == [(simulation, step) for simulation in range(2) for step in range(20)]
    expected = [np.mean((prediction - truth) ** 2) for truth, prediction in (predicted(*pair) for pair in pairs)]
    np.testing.assert_allclose(found.errors, expected, rtol=1e-3, atol=1e-6)
    assert found.values["loss"] == pytest.approx(np.mean(expected), rel=1e-3)
    assert len(found.samples) == 3
    for sample in found.samples:
        truth, prediction = predicted(sample.simulation, sample.time_step)
        np.testing.assert_allclose(sample.shown["signal"][0], truth, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sample.shown["signal"][1], prediction, rtol=1e-4, atol=1e-5)
