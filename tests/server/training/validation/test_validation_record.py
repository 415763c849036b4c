"""The record of a validation: which samples are rendered, and what is kept of them, in and beside a study."""

import csv
import logging
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation, recorded_batches
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.validation.validation_batches import HeldOut, HeldOutSamples
from stream_server.server.training.validation.validation_record import (
    MAX_VALUES,
    SquaredError,
    ValidationRecord,
    batches_to_keep,
    choose,
    squared_errors,
    subsampled,
)
from stream_server.server.user.forecast import FLOATS, rounding_of
from stream_server.server.user.rendering import Prediction, render
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Model, Server, held_out, validation
from tests.support.runs import run_here, run_study

STUDY = Path(__file__).parents[3] / "study" / "numpy_study"


class Doubling(StreamServer):
    """Predicts twice the truth."""

    parameter_names = ("p",)

    def predict(self, batch: Any) -> Any:
        return 2 * batch[1]


class Raising(Doubling):
    """Cannot render."""

    def render(self, sample: Any, prediction: Prediction) -> Any:
        raise ZeroDivisionError("no picture")


def samples(num: int) -> HeldOut:
    store = ValidationStore(num)
    for number in range(num):
        values = np.arange(1.0 + 4 * number, 5.0 + 4 * number).reshape(2, 2)
        store.add(number // 2, number % 2, {"x": values}, {"x": True})
        store.complete(number // 2)
    found = HeldOutSamples(store=store, parameters_of=lambda it: np.full(1, 7.0))()
    assert found is not None
    return found


def record(folder: Path, server: StreamServer, raw: HeldOut, batch: int = 10, unit: str = "K", **options: Any) -> None:
    server.parameter_names = ("p",)
    one = ValidationRecord(folder / "validations", server, SoloRanks(), num=2, facts={"units": {"x": unit}}, **options)
    one.begin("set", raw)
    values = raw.batch()
    one.observe(raw, (values.parameters, values.fields["x"].reshape(len(raw), -1)), None)
    one.write(batch, {"loss": 0.5}, [])


class OnlyTorch(StreamServer):
    """Stands for a TorchServer: its own predict does not know these batches."""

    def predict(self, batch: Any) -> Any:
        return None


def test_a_class_that_predicts_nothing_of_its_batches_is_told_once(tmp_path: Path) -> None:
    OnlyTorch.predict.__module__ = "stream_server.server.user.torch_server"
    for server, num in ((OnlyTorch(), 1), (type("Silent", (OnlyTorch,), {"predict": lambda self, batch: None})(), 0)):
        kept = ValidationRecord(tmp_path, server, SoloRanks(), num=2, facts={})
        raw = samples(4)
        kept.begin("set", raw)
        for _ in range(2):
            kept.observe(raw, {"x": raw.batch().fields["x"]}, None)
        assert len(kept.warnings) == num
        assert all("define predict in the server class" in warning for warning in kept.warnings)


def test_squared_errors_of_complex_values_are_those_of_their_magnitudes() -> None:
    random = np.random.default_rng(1)
    outputs, targets = (random.normal(size=(2, 6, 4, 2)) @ [1, 1j]).astype(np.complex64)
    error = SquaredError()
    errors = error.add(outputs, targets)
    assert errors == pytest.approx(np.mean(np.abs(outputs - targets) ** 2, axis=1), rel=1e-6)
    expected = np.mean(np.abs(outputs - targets) ** 2) / np.mean(np.var(targets, axis=0))
    assert error.over_variance(SoloRanks()) == pytest.approx(expected, rel=1e-6)


def test_chosen_samples_are_spread_over_simulations_and_time_steps() -> None:
    keys = [(simulation, step) for simulation in range(6) for step in range(100)]
    assert choose(keys, 3) == [[0, 16], [2, 50], [4, 83]]


def test_no_sample_is_chosen_twice_and_none_where_there_is_none() -> None:
    assert choose([(0, 5)], 4) == [[0, 5]]
    assert choose([], 4) == []


def test_the_first_the_best_and_the_newest_records_stay() -> None:
    # Of a validation of some sets, which has no loss, there is no record.
    history = [{"batch": batch, **({"loss": 1.0} if batch < 100 else {"far/loss": 1.0})} for batch in range(103)]
    assert set(batches_to_keep(history, {"batch": 40})) == {0, 40, *range(90, 100)}


def test_large_fields_are_thinned() -> None:
    assert 0 < subsampled(np.zeros((1000, 2000))).size <= MAX_VALUES
    assert subsampled(np.zeros((3, 2))).shape == (3, 2)


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
    assert truth.tolist() == raw.batch().fields["x"][3].tolist()
    assert prediction.tolist() == (2 * raw.batch().fields["x"][3]).tolist()
    squares = np.mean(raw.batch().fields["x"] ** 2, axis=(1, 2))
    assert found.by_simulation() == pytest.approx({0: squares[:2].mean(), 1: squares[2:].mean()})
    assert found.by_time_step() == pytest.approx({0: squares[::2].mean(), 1: squares[1::2].mean()})


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_target_that_is_a_field_only_after_scaling_is_brought_back_to_its_unit(scale: float) -> None:
    field = np.arange(1.0, 7.0).reshape(2, 3)
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"x": field})
    prediction = Prediction(output=scale * field.reshape(-1) + scale, target=scale * field.reshape(-1))
    truth, predicted = render(sample, prediction, lambda name, array: array / scale, FLOATS)["x"]
    np.testing.assert_allclose(truth, field)
    np.testing.assert_allclose(predicted, field + 1)


@pytest.mark.parametrize("order", [("u", "v"), ("v", "u")])
def test_several_fields_in_one_target_are_shown_each_by_itself(order: tuple[str, str]) -> None:
    fields = {"u": np.arange(1.0, 7.0).reshape(2, 3), "v": np.array([9.0, 8.0]), "other": np.arange(8.0)}
    scales = {"u": 2.0, "v": 0.5, "other": 1.0}
    target = np.concatenate([scales[name] * fields[name].ravel() for name in order])
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields=fields)
    prediction = Prediction(output=target + 1, target=target)
    shown = render(sample, prediction, lambda name, array: array / scales[name], FLOATS)
    assert list(shown) == list(order)
    for name, (truth, predicted) in shown.items():
        np.testing.assert_allclose(truth, fields[name])
        np.testing.assert_allclose(predicted, fields[name] + 1 / scales[name])


def test_a_target_of_a_field_and_something_else_is_shown_as_it_is() -> None:
    fields = {"u": np.arange(3.0), "v": np.arange(2.0)}
    target = np.array([0.0, 1.0, 2.0, 5.0, 5.0])
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields=fields)
    assert list(render(sample, Prediction(output=target, target=target), lambda name, array: array, FLOATS)) == [
        "output"
    ]


def test_a_target_that_is_no_field_is_shown_beside_the_output_as_it_is() -> None:
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"x": np.arange(3.0)})
    change = np.full(3, 0.1)
    shown = render(sample, Prediction(output=change + 1, target=change), lambda name, array: array, FLOATS)
    assert list(shown) == ["output"]
    assert shown["output"][0].tolist() == change.tolist()


def shown_as(
    field: NDArray[Any], target: NDArray[Any], *, mean: float = 0.0, std: float = 1.0, precision: str = "32-true"
) -> str:
    """The name under which a sample of one field is shown with this target."""
    sample = SimulationData(simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"x": field})
    target = target.astype(np.float16 if precision == "16-true" else np.float32).astype(np.float32)
    prediction = Prediction(output=target, target=target)
    [name] = render(sample, prediction, lambda _, array: array * std + mean, rounding_of(precision))
    return name


@pytest.mark.parametrize("precision", ["32-true", "16-true"])
@pytest.mark.parametrize("offset", [0.0, 300.0, 1e5])
def test_a_field_is_recognised_but_no_change_of_it_and_no_other_step(offset: float, precision: str) -> None:
    random = np.random.default_rng(0)
    before = offset + random.normal(size=50)
    after = before + 0.05 * random.normal(size=50)
    statistics = {"mean": offset, "std": 1.0, "precision": precision}
    assert shown_as(after, after - offset, **statistics) == "x"
    assert shown_as(after, after - before, **statistics) == "output"
    assert shown_as(after, before - offset, **statistics) == "output"
    assert shown_as(after, after - before, precision=precision) == "output"


@pytest.mark.parametrize("field", [np.zeros(4), np.full(4, np.nan)])
def test_a_field_that_is_like_its_change_is_shown_as_the_bare_output(field: NDArray[Any]) -> None:
    assert shown_as(field, np.zeros(4)) == "output"


def test_a_target_that_is_not_normalised_is_a_field_too_where_the_statistics_are_kept() -> None:
    assert shown_as(np.arange(4.0), np.arange(4.0), mean=7.0, std=2.0) == "x"


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


class OfEach(StreamServer):
    """Its loss of a sample is ten times its value; it cannot predict."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return batch.fields["x"]

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": 10 * batch, "largest": batch}


class Predicting(OfEach):
    """Predicts twice the truth as well, and gives one loss for a batch if that is the `single` one."""

    single = -1

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return batch.fields["x"], batch.fields["x"].copy()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        losses = 10 * batch[1]
        return float(losses.mean()) if batch_idx == self.single else losses

    def predict(self, batch: Any) -> Any:
        return 2 * batch[0]


def validated(folder: Path, server: type[StreamServer], *, pictures: int, of_ranks: list[list[float]]) -> Any:
    """The record of a validation, and its values, on ranks that hold these values of the field x."""

    def run(ranks: Any) -> Any:
        own = server()
        own.parameter_names = ("p",)
        kept = ValidationRecord(folder / "validations", own, ranks, num=pictures, facts={"units": {}})
        values = of_ranks[ranks.rank]
        samples = held_out(values, simulation=ranks.rank) if values else None
        return validation(own, ranks, record=kept, held_out=lambda: samples, step=Unseeded()).run()

    first, *others = on_ranks(len(of_ranks), run)
    assert all(other == first for other in others)
    return read_validation(RunFolder(folder)), first


class Unseeded(Model):
    """A model without random numbers."""

    def random_state(self) -> dict[str, Any]:
        return {}

    def load_random_state(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("pictures", [0, 2])
def test_the_loss_of_each_sample_is_its_error_on_uneven_ranks_without_predictions(
    tmp_path: Path, pictures: int
) -> None:
    of_ranks = [[1.0, 2.0, 6.0], [], [5.0]]
    found, values = validated(tmp_path, OfEach, pictures=pictures, of_ranks=of_ranks)
    assert values == found.values == {"loss": pytest.approx(10 * 14 / 4), "largest": pytest.approx(14 / 4)}
    assert found.is_whole
    assert found.has_losses
    assert found.error_label == "loss of the server class"
    assert dict(zip(zip(found.simulations, found.time_steps, strict=True), found.errors, strict=True)) == {
        (rank, step): 10 * value for rank, values in enumerate(of_ranks) for step, value in enumerate(values)
    }


def test_the_loss_of_each_sample_goes_before_the_squared_error_of_predictions(tmp_path: Path) -> None:
    found, _ = validated(tmp_path, Predicting, pictures=1, of_ranks=[[1.0, 2.0, 3.0]])
    assert found.errors.tolist() == [10.0, 20.0, 30.0]
    assert len(found.samples) == 1


@pytest.mark.parametrize("of_ranks", [[[1.0, 2.0, 3.0]], [[1.0], [2.0, 3.0, 4.0, 5.0]]])
def test_errors_are_squared_if_a_batch_of_any_rank_has_a_single_loss(
    tmp_path: Path, of_ranks: list[list[float]]
) -> None:
    class Once(Predicting):
        single = 1

    found, _ = validated(tmp_path, Once, pictures=1, of_ranks=of_ranks)
    assert not found.has_losses
    assert found.errors.tolist() == [value**2 for values in of_ranks for value in values]


@pytest.mark.parametrize("server", [Server, Predicting])
def test_without_losses_of_samples_and_pictures_there_is_no_record(tmp_path: Path, server: type[StreamServer]) -> None:
    class Single(server):  # type: ignore[misc, valid-type]
        predict = OfEach.predict
        single = 0

    assert validated(tmp_path, Single, pictures=0, of_ranks=[[1.0, 2.0]]) == (
        None,
        {"loss": pytest.approx(1.5, rel=10)},
    )
    assert not (tmp_path / "validations").exists()


def test_the_squared_error_is_held_against_the_variance_of_the_targets_of_all_ranks() -> None:
    random = np.random.default_rng(1)
    targets = random.normal(300, [1.0, 20.0, 0.1], (7, 3)).astype(np.float32)
    outputs = targets + random.normal(0, 2.0, (7, 3)).astype(np.float32)

    def ratio(ranks: Any) -> float | None:
        error = SquaredError()
        mine = [slice(0, 0), slice(0, 5), slice(5, 7)][ranks.rank]
        for row in range(7)[mine]:
            error.add(outputs[row : row + 1], targets[row : row + 1])
        return error.over_variance(ranks)

    expected = np.mean((outputs - targets) ** 2) / np.var(targets.astype(float), axis=0).mean()
    assert on_ranks(3, ratio) == [pytest.approx(expected, rel=1e-5)] * 3


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (None, None),
        (np.ones((2, 3)), None),
        (np.ones((2, 3)), np.ones((2, 2))),
        (np.full((2, 3), np.nan), np.ones((2, 3))),
        (np.ones((2, 2)), np.ones((2, 2))),
    ],
)
def test_no_ratio_is_known_if_a_sample_cannot_be_compared(outputs: Any, targets: Any) -> None:
    error = SquaredError()
    error.add(np.ones((2, 3)), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert error.over_variance(SoloRanks()) is not None
    error.add(outputs, targets)
    assert error.over_variance(SoloRanks()) is None


def test_targets_that_do_not_vary_have_no_ratio() -> None:
    error = SquaredError()
    assert error.over_variance(SoloRanks()) is None
    error.add(np.ones((2, 3)), np.zeros((2, 3)))
    assert error.over_variance(SoloRanks()) is None


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
@pytest.mark.parametrize(
    ("server", "num_ranks"),
    [
        ("torch_server.py:TinyServer", 1),
        pytest.param("sample_loss_server.py:LargestDeviationServer", 2, marks=pytest.mark.full),
        pytest.param("torch_server.py:TinyServer", 2, marks=pytest.mark.full),
    ],
)
def test_the_ranks_record_the_errors_of_the_exported_model(tmp_path: Path, server: str, num_ranks: int) -> None:
    import torch
    from safetensors.torch import load_file
    from torch import nn

    settings = {"server.class": server, "validation.simulations": 3, "validation.pictures": 3}
    settings |= {"study.simulations": 2, "study.time_steps": 15, "validation.batch_size": 4}
    study, output_dir = STUDY / "study.json", tmp_path / "run"
    if num_ranks == 1:
        run = run_here(study, output_dir, settings=settings)
    else:
        run = run_study(study, output_dir, num_ranks=num_ranks, settings=settings)
    assert run.exit_code == 0, run.output
    found = read_validation(RunFolder(run.output_dir))
    assert found is not None
    assert found.is_whole
    assert {path.name[-10:-4] for path in (run.output_dir / "validations").iterdir()} == {
        f"rank-{rank}" for rank in range(num_ranks)
    }

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
    assert sorted(pairs) == [(simulation, step) for simulation in range(3) for step in range(15)]
    truths, predictions = map(np.array, zip(*(predicted(*pair) for pair in pairs), strict=True))
    squares = np.mean((predictions - truths) ** 2, axis=1)
    has_losses = server.startswith("sample_loss")
    assert found.has_losses == has_losses
    expected = np.abs(predictions - truths).max(axis=1) if has_losses else squares
    np.testing.assert_allclose(found.errors, expected, rtol=1e-3, atol=1e-6)
    assert found.values["loss"] == pytest.approx(np.mean(expected), rel=1e-3)
    ratio = np.mean(squares) / np.mean(np.var(truths, axis=0))
    assert run.report["validation"][-1]["error_over_variance"] == pytest.approx(ratio, rel=1e-3)
    assert "of the variance of the held-out data" in run.output
    assert len(found.samples) == 3
    for sample in found.samples:
        truth, prediction = predicted(sample.simulation, sample.time_step)
        np.testing.assert_allclose(sample.shown["signal"][0], truth, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sample.shown["signal"][1], prediction, rtol=1e-4, atol=1e-5)
