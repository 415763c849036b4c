"""Rollouts: what is forecast from what, and the errors by lead time, on any number of ranks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation
from stream_server.buffers import WindowShape
from stream_server.config.training_sections import RolloutSettings
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.validation.rollout import RolloutErrors, Rollouts, shown_steps
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.training.validation.validation_record import ValidationRecord
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Model, Written, at, validation

WEIGHTS = np.array([[0.9, -0.2, 0.0], [0.1, 0.8, 0.3]])
"""A forecast is a combination of the last two steps and a forcing."""

Array = NDArray[Any]


class Step(Model):
    """Has random numbers, and says whether it evaluates."""

    is_evaluating = False
    drawn = 7

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.is_evaluating = True
        yield
        self.is_evaluating = False

    def random_state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_random_state(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


class Linear(StreamServer):
    """Forecasts `u` by itself from its last two steps and the forcing `f` of the next one."""

    def __init__(self, length: int, **rollout: Any) -> None:
        super().__init__()
        settings = RolloutSettings(**({"fields": ("u",), "input_steps": length - 1} | rollout))
        self.config = SimpleNamespace(
            validation=SimpleNamespace(rollout=settings, val_dataloader=None), window=SimpleNamespace(length=length)
        )
        self.handed: list[SimulationBatch] = []

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.handed.append(batch)
        u, f = (
            self.normalization.normalize("u", batch.fields["u"]) if self.is_scaled else batch.fields["u"],
            batch.fields["f"],
        )
        return (u[:, -3:-1], f[:, -1]), u[:, -1]

    @property
    def is_scaled(self) -> bool:
        return "u" in self.normalization.fields

    def validation_step(self, batch: Any, batch_idx: int) -> float:
        return float(np.mean((self.predict(batch) - batch[1]) ** 2))

    def predict(self, batch: Any) -> Any:
        (u, f), _ = batch
        return np.einsum("nti,tji->nj", u, np.stack([WEIGHTS[:, :1] * np.eye(2), WEIGHTS[:, 1:2] * np.eye(2)])) + (
            WEIGHTS[:, 2] * f[:, None]
        )


def forecast_one(given: Sequence[Array], forcing: Sequence[float]) -> list[Array]:
    """What `Linear` forecasts, step by step, computed without a batch."""
    u = [*given]
    for f in forcing:
        u.append(WEIGHTS[:, 0] * u[-2] + WEIGHTS[:, 1] * u[-1] + WEIGHTS[:, 2] * f)
    return u[len(given) :]


def trajectory(simulation: int, num: int) -> tuple[Array, Array]:
    random = np.random.default_rng(simulation)
    return random.normal(size=(num, 2)), random.normal(size=num)


def store_of(lengths: dict[int, int], left_out: Sequence[tuple[int, int]] = ()) -> ValidationStore:
    store = ValidationStore(100)
    for simulation, num in lengths.items():
        for step, (u, f) in enumerate(zip(*trajectory(simulation, num), strict=True)):
            if (simulation, step) not in left_out:
                store.add(simulation, step, {"u": u, "f": f}, {"u": True, "f": True})
        store.complete(simulation)
    return store


def rollouts(server: Linear, store: ValidationStore, ranks: Ranks | None = None, **options: Any) -> Rollouts:
    length = server.config.window.length
    shape = WindowShape(**({"length": length} | options.pop("shape", {})))
    held_out = HeldOutSamples(store=store, parameters_of=lambda it: np.array([float(it)]), window_shape=shape)
    settings = server.config.validation.rollout
    given = {"settings": settings, "shape": shape, "held_out": held_out, "batch_size": 2, **options}
    return Rollouts(server, ranks or SoloRanks(), given.pop("step", Step()), **given)


def run(server: Linear, store: ValidationStore, **options: Any) -> RolloutErrors:
    found = rollouts(server, store, **options).run(lambda: False)
    assert found is not None
    return found


def expected(lengths: dict[int, int], horizon: int = 100, num_given: int = 2, spacing: int = 1) -> list[float]:
    """The mean squared error by lead time."""
    by_lead: dict[int, list[float]] = {}
    for simulation, num in lengths.items():
        u, f = (it[::spacing] for it in trajectory(simulation, num))
        for lead, forecast in enumerate(forecast_one(u[:num_given], f[num_given:][:horizon])):
            by_lead.setdefault(lead, []).append(float(np.mean((forecast - u[num_given + lead]) ** 2)))
    return [float(np.mean(by_lead[lead])) for lead in sorted(by_lead)]


def test_each_forecast_is_made_from_the_forecasts_before_it_and_what_is_given_stays_given() -> None:
    lengths = {0: 9, 3: 9, 5: 9}
    found = run(Linear(3), store_of(lengths))
    assert found.lead_times == list(range(1, 8))
    assert found.num_trajectories == [3] * 7
    assert found.mse["u"] == pytest.approx(expected(lengths))


def test_trajectories_may_differ_in_length() -> None:
    lengths = {0: 4, 1: 9, 2: 6}
    found = run(Linear(3), store_of(lengths))
    assert found.num_trajectories == [3, 3, 2, 2, 1, 1, 1]
    assert found.mse["u"] == pytest.approx(expected(lengths))
    assert found.means()["u"] == pytest.approx(np.average(expected(lengths), weights=found.num_trajectories))


def test_a_trajectory_ends_before_a_missing_step() -> None:
    found = run(Linear(3), store_of({0: 9}, left_out=[(0, 6)]))
    assert found.mse["u"] == pytest.approx(expected({0: 9})[:4])


def test_the_horizon_bounds_the_lead_times() -> None:
    found = run(Linear(3, horizon=4), store_of({0: 9, 1: 9}))
    assert found.mse["u"] == pytest.approx(expected({0: 9, 1: 9}, horizon=4))


def test_steps_lie_apart_and_lead_times_count_time_steps() -> None:
    found = run(Linear(3), store_of({0: 12}), shape={"spacing": 2})
    assert found.lead_times == [2, 4, 6, 8]
    assert found.mse["u"] == pytest.approx(expected({0: 12}, spacing=2))


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_the_ranks_share_the_trajectories_and_find_what_one_rank_finds(num_ranks: int) -> None:
    lengths = {0: 9, 1: 4, 2: 9, 3: 7}

    def on(ranks: Ranks) -> RolloutErrors | None:
        mine = {simulation: num for simulation, num in lengths.items() if simulation % ranks.size == ranks.rank}
        return rollouts(Linear(3), store_of(mine), ranks).run(lambda: False)

    for found in on_ranks(num_ranks, on):
        assert found.num_trajectories == run(Linear(3), store_of(lengths)).num_trajectories
        assert found.mse["u"] == pytest.approx(expected(lengths))


def test_a_normalised_output_is_brought_to_the_unit_of_the_field() -> None:
    server, lengths = Linear(3), {0: 9, 1: 9}
    server.normalization = Normalization(SoloRanks(), {"u": ()})
    server.normalization.observe({"u": np.array([3.0, 7.0, 11.0])}, np.zeros((3, 1)))
    server.normalization.sync()
    found = run(server, store_of(lengths))
    # The forcing and the mean do not commute with the scale: the model is another one in the unit of the field.
    mean, std = float(server.normalization.mean["u"]), float(server.normalization.std["u"])
    errors = []
    for simulation, num in lengths.items():
        u, f = trajectory(simulation, num)
        scaled = forecast_one(list((u[:2] - mean) / std), f[2:])
        errors.append([np.mean((it * std + mean - truth) ** 2) for it, truth in zip(scaled, u[2:], strict=True)])
    assert found.mse["u"] == pytest.approx(np.mean(errors, axis=0).tolist())


def test_user_code_sees_copies_of_the_last_known_step_in_place_of_what_it_forecasts() -> None:
    server = Linear(3)
    run(server, store_of({4: 5}))
    u, f = trajectory(4, 5)
    sent, first, second, _ = server.handed
    assert sent.fields["u"][0].tolist() == u[1:4].tolist()
    assert first.fields["u"][0].tolist() == [u[0].tolist(), u[1].tolist(), u[1].tolist()]
    assert first.fields["f"][0].tolist() == f[:3].tolist()
    assert first.parameters.tolist() == [[4.0]]
    assert second.time_steps.tolist() == [[1, 2, 3]]
    forecast = forecast_one(u[:2], f[2:3])[0]
    np.testing.assert_allclose(second.fields["u"][0], [u[1], forecast, forecast])


def test_the_windows_that_the_server_sees_first_are_spread_over_the_trajectories() -> None:
    class Shown(Linear):
        def enter_rollout(self, window: SimulationBatch, batch: Any) -> None:
            super().enter_rollout(window, batch)
            self.shown = window.time_steps.tolist()

    server = Shown(3)
    run(server, store_of({0: 9, 1: 13}))
    assert server.shown == [[1, 2, 3], [7, 8, 9]]


def test_several_steps_may_be_forecast_at_once() -> None:
    class Constant(Linear):
        def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
            return batch.fields["u"][:, :2], batch.fields["u"][:, 2:].reshape(len(batch), -1)

        def predict(self, batch: Any) -> Any:
            return np.concatenate([batch[0][:, 1] + 1, batch[0][:, 1] + 2], axis=1)

    u, _ = trajectory(0, 7)
    found = run(Constant(4, input_steps=2), store_of({0: 7}))
    assert found.mse["u"] == pytest.approx([np.mean((u[1] + lead - u[1 + lead]) ** 2) for lead in range(1, 6)])


def test_a_forecast_that_is_not_finite_has_an_infinite_error() -> None:
    class Exploding(Linear):
        def predict(self, batch: Any) -> Any:
            return batch[0][0][:, -1] * np.float32(1e30)

    found = run(Exploding(3), store_of({0: 6, 1: 4}))
    assert np.isfinite(found.mse["u"]).tolist() == [True, False, False, False]
    assert found.means()["u"] == np.inf


def returning(value: Callable[[SimulationBatch], Any]) -> Linear:
    class Returning(Linear):
        def rollout_step(self, window: SimulationBatch, batch: Any) -> Any:
            return value(window)

    return Returning(3)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (returning(lambda window: {"v": 0}), r"must return a dict of the fields \['u'\], but returned the fields"),
        (returning(lambda window: window.fields["u"]), "must return a dict .* but returned <class 'numpy.ndarray'>"),
        (returning(lambda window: window.fields), r"the fields \['f', 'u'\]"),
        (returning(lambda window: {"u": window.fields["u"]}), r"in the shape \(1, 1, 2\) or \(1, 2\), but returned"),
        (Linear(3, fields=("u", "f")), "Linear must define rollout_step: .* which is u and f"),
    ],
)
def test_what_cannot_be_used_is_an_error_of_the_user(server: Linear, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        run(server, store_of({0: 5}))


class Change(Linear):
    """Is trained towards the change of the field in the last step."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        inputs, _ = super().process_batch(batch, config)
        change = batch.fields["u"][:, -1] - batch.fields["u"][:, -2]
        return inputs, change / self.normalization.std["u"] if self.is_scaled else change


def store_from(steps: Sequence[Array]) -> ValidationStore:
    store = ValidationStore(100)
    for step, u in enumerate(steps):
        store.add(0, step, {"u": u, "f": np.zeros(())}, {"u": True, "f": True})
    store.complete(0)
    return store


@pytest.mark.parametrize("offset", [None, 0.0, 300.0])
def test_a_target_that_is_a_change_is_not_taken_for_the_field(offset: float | None) -> None:
    server = Change(3)
    if offset is not None:
        server.normalization = Normalization(SoloRanks(), {"u": ()})
        server.normalization.observe({"u": offset + np.array([-1.0, 0.0, 1.0])}, np.zeros((3, 1)))
        server.normalization.sync()
    steps = (offset or 0.0) + 0.1 * np.arange(12.0).reshape(6, 2) ** 1.5
    with pytest.raises(UserCodeError, match="Change must define rollout_step"):
        run(server, store_from(steps))


def test_what_begins_at_rest_is_forecast_if_it_is_the_field_and_refused_if_it_is_the_change() -> None:
    steps = [np.zeros(2)] * 2 + [np.array([step, -0.5 * step]) for step in range(1, 5)]
    assert run(Linear(3), store_from(steps)).lead_times == [1, 2, 3, 4]
    with pytest.raises(UserCodeError, match="Change must define rollout_step"):
        run(Change(3, horizon=1), store_from(steps))


def test_the_model_evaluates_and_random_numbers_are_left_as_they_were() -> None:
    step = Step()

    class Dicing(Linear):
        def predict(self, batch: Any) -> Any:
            assert step.is_evaluating
            step.drawn += 1
            return super().predict(batch)

    run(Dicing(3), store_of({0: 5}), step=step)
    assert (step.is_evaluating, step.drawn) == (False, 7)


def test_without_a_trajectory_that_is_long_enough_there_are_no_errors_and_no_call_of_user_code() -> None:
    server = Linear(3)
    assert run(server, ValidationStore(3)).lead_times == []
    assert server.handed == []


def test_all_ranks_leave_together() -> None:
    def on(ranks: Ranks) -> tuple[RolloutErrors | None, int]:
        server = Linear(3)
        found = rollouts(server, store_of({ranks.rank: 9}), ranks)
        return found.run(lambda: ranks.rank == 1 and len(server.handed) >= 4), len(server.handed)

    assert on_ranks(2, on) == [(None, 4), (None, 4)]


def test_few_lead_times_are_shown_and_the_last_one() -> None:
    assert shown_steps(0) == []
    assert shown_steps(3) == [1, 2, 3]
    assert shown_steps(130) == [1, 2, 5, 10, 20, 50, 100, 130]


def test_a_validation_has_the_errors_in_values_history_and_state() -> None:
    server, written, store = Linear(3), Written(), store_of({0: 9, 1: 9})
    mse = expected({0: 9, 1: 9})
    one = validation(
        server,
        held_out=rollouts(server, store)._held_out,
        rollouts=rollouts(server, store),
        metrics=written,
        progress=at(5),
        step=Step(),
    )
    values = one.run()
    leads = {f"rollout/u/lead_{lead}": pytest.approx(mse[lead - 1]) for lead in (1, 2, 5, 7)}
    assert {key: it for key, it in values.items() if key.startswith("rollout")} == {
        "rollout/u": pytest.approx(np.mean(mse)),
        **leads,
    }
    assert {f"val/{name}" for name in values} == set(written.records[0][1])
    assert one.history == [{"batch": 5, "loss": values["loss"], "rollout": {"u": values["rollout/u"]}}]
    restored = validation(server, step=Step())
    restored.load_state_dict(from_bytes(to_bytes(one.state_dict())))
    assert restored.rollout == {
        "batch": 5,
        "lead_times": list(range(1, 8)),
        "num_trajectories": [2] * 7,
        "mse": {"u": pytest.approx(mse)},
    }


def test_rollouts_are_recorded_beside_a_loader_of_the_user(tmp_path: Path) -> None:
    class Loading(Linear):
        def val_dataloader(self) -> Any:
            return [np.ones(3)]

        def validation_step(self, batch: Any, batch_idx: int) -> float:
            return 0.5

    server, lengths = Loading(3), {0: 9, 1: 6}
    one = validation(
        server,
        held_out=rollouts(server, store_of(lengths))._held_out,
        rollouts=rollouts(server, store_of(lengths), shape={"spacing": 2}),
        record=ValidationRecord(tmp_path / "validations", server, SoloRanks(), num=2, facts={"units": {}}),
        progress=at(5),
        step=Step(),
    )
    values = one.run()
    found = read_validation(RunFolder(tmp_path))
    assert values["loss"] == 0.5
    assert found is not None
    assert (found.batch, len(found.errors), found.samples) == (5, 0, ())
    assert found.rollouts is not None
    assert found.rollouts.simulations.tolist() == [0, 1]
    assert found.rollouts.lead_times.tolist() == [2, 4, 6]
    assert np.isnan(found.rollouts.mse["u"]).tolist() == [[False] * 3, [False, True, True]]
    assert found.rollouts.by_lead_time("u").tolist() == pytest.approx(one.rollout["mse"]["u"] if one.rollout else None)


@pytest.mark.parametrize("name", ["rollout_simulations", "rollout_lead_times", "rollout_mse.u"])
def test_a_damaged_record_of_rollouts_is_refused_in_words(tmp_path: Path, name: str) -> None:
    server = Linear(3)
    record = ValidationRecord(tmp_path / "validations", server, SoloRanks(), num=0, facts={"units": {}})
    forecast = rollouts(server, store_of({0: 9}))
    forecast.run(lambda: False)
    record.write(5, {"loss": 1.0}, [], forecast.mine)
    [file] = (tmp_path / "validations").iterdir()
    with np.load(file) as arrays:
        content = {key: arrays[key] for key in arrays.files}
    for damaged in (np.array(["x"] * 7), np.zeros((2, 2, 2)), np.zeros((5, 1))):
        np.savez(file, **{**content, name: damaged})
        with pytest.raises(ConfigError, match="damaged"):
            read_validation(RunFolder(tmp_path))


def test_a_validation_that_is_left_in_the_rollouts_goes_on_with_them_alone() -> None:
    server, store = Linear(3), store_of({0: 9})
    options: dict[str, Any] = {"held_out": rollouts(server, store)._held_out, "progress": at(5)}
    whole = validation(server, **options, rollouts=rollouts(server, store), step=Step()).run()
    is_forecasting = iter([False] * 5 + [True] * 100)
    one = validation(server, **options, rollouts=rollouts(server, store), step=Step())
    assert one.run(must_leave=lambda: next(is_forecasting)) == {}
    again = validation(server, **options, rollouts=rollouts(server, store), step=Step())
    again.load_state_dict(from_bytes(to_bytes(one.state_dict())))
    server.validation_step = pytest.fail  # type: ignore[method-assign]
    assert again.run() == whole
