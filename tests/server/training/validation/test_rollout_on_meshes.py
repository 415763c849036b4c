"""Rollouts of fields on the nodes of meshes, of which each simulation has another one."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server import pack
from stream_server.buffers import WindowShape
from stream_server.buffers.statics import StaticFields
from stream_server.config.training_sections import RolloutSettings
from stream_server.errors import UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.validation.rollout import RolloutErrors, Rollouts
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.test_rollout import Step

SIZES = {0: 3, 1: 5, 2: 1, 3: 5}
NUM_STEPS = {0: 9, 1: 6, 2: 9, 3: 4}

Array = NDArray[Any]


class Rings(StreamServer):
    """Each node of a ring of its own length takes from its neighbour; from the last two steps and a static field."""

    def __init__(self, length: int = 3, input_steps: int = 2) -> None:
        super().__init__()
        settings = RolloutSettings(fields=("u",), input_steps=input_steps)
        self.config = SimpleNamespace(
            validation=SimpleNamespace(rollout=settings, val_dataloader=None), window=SimpleNamespace(length=length)
        )

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        u, offsets = pack(batch.fields["u"])
        neighbour = np.arange(len(u)) + 1
        neighbour[offsets[1:] - 1] = offsets[:-1]
        sources, _ = pack(batch.fields["source"])
        target = u[:, 2:]
        for values in batch.fields["u"].flat:
            values[:] = np.nan
        return (u[:, :2], sources, neighbour), target

    def predict(self, batch: Any) -> Any:
        (u, sources, neighbour), target = batch
        known = [*np.moveaxis(u, 1, 0)]
        for _ in range(target.shape[1]):
            known.append(0.5 * known[-2] + 0.4 * known[-1][neighbour] + sources)
        return np.stack(known[2:], axis=1)


def trajectory(simulation: int) -> tuple[Array, Array]:
    """The values of both columns on all nodes at each step, and what each node has of its own."""
    random = np.random.default_rng(simulation)
    size = SIZES[simulation]
    return random.normal(size=(NUM_STEPS[simulation], size, 2)), random.normal(size=(size, 2))


def forecast_one(simulation: int) -> list[Array]:
    """What `Rings` forecasts of one simulation, by itself and with the ring as a shift."""
    u, source = trajectory(simulation)
    known = [*u[:2]]
    while len(known) < len(u):
        known.append(0.5 * known[-2] + 0.4 * np.roll(known[-1], -1, axis=0) + source)
    return known[2:]


def expected() -> list[float]:
    """The mean squared error by lead time."""
    by_lead: dict[int, list[float]] = {}
    for simulation in SIZES:
        u, _ = trajectory(simulation)
        for lead, forecast in enumerate(forecast_one(simulation)):
            by_lead.setdefault(lead, []).append(float(np.mean((forecast - u[2 + lead]) ** 2)))
    return [float(np.mean(by_lead[lead])) for lead in sorted(by_lead)]


def rollouts(server: Rings, simulations: Any = SIZES, ranks: Ranks | None = None) -> Rollouts:
    store = ValidationStore(100, ragged={"u"})
    statics = StaticFields({"source": (5, 2)}, ragged={"source"})
    for simulation in simulations:
        u, source = trajectory(simulation)
        statics.put(simulation, {"source": source})
        for step, values in enumerate(u):
            store.add(simulation, step, {"u": values}, {"u": True})
        store.complete(simulation)
    return over(server, store, statics, ranks)


def over(server: Rings, store: ValidationStore, statics: StaticFields, ranks: Ranks | None = None) -> Rollouts:
    shape = WindowShape(length=server.config.window.length)
    held_out = HeldOutSamples(
        store=store, parameters_of=lambda it: np.array([float(it)]), window_shape=shape, statics=statics
    )
    settings = server.config.validation.rollout
    return Rollouts(
        server, ranks or SoloRanks(), Step(), settings=settings, shape=shape, held_out=held_out, batch_size=3
    )


def run(server: Rings) -> RolloutErrors:
    found = rollouts(server).run(lambda: False)
    assert found is not None
    return found


def test_each_simulation_is_forecast_on_its_own_mesh_whatever_user_code_writes_into_the_window() -> None:
    found = run(Rings())
    assert found.num_trajectories == [4, 4, 3, 3, 2, 2, 2]
    assert found.mse["u"] == pytest.approx(expected())


def test_several_steps_may_be_forecast_at_once() -> None:
    assert run(Rings(length=4)).mse["u"] == pytest.approx(expected())


def test_the_ranks_share_the_simulations() -> None:
    def on(ranks: Ranks) -> RolloutErrors | None:
        return rollouts(Rings(), [it for it in SIZES if it % 2 == ranks.rank], ranks).run(lambda: False)

    assert [found and found.mse["u"] for found in on_ranks(2, on)] == [pytest.approx(expected())] * 2


def test_a_normalised_output_is_brought_to_the_unit_of_the_field() -> None:
    class Scaled(Rings):
        def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
            (u, *others), target = super().process_batch(batch, config)
            return (u, *others), self.normalization.normalize("u", target)

        def predict(self, batch: Any) -> Any:
            return self.normalization.normalize("u", super().predict(batch))

    server = Scaled()
    server.normalization = Normalization(SoloRanks(), {"u": (2,)})
    server.normalization.observe({"u": np.array([[3.0, -1.0], [7.0, 5.0], [11.0, 2.0]])}, np.zeros((3, 1)))
    server.normalization.sync()
    assert run(server).mse["u"] == pytest.approx(expected(), rel=1e-4)


def test_a_forecast_of_other_rows_is_an_error_of_the_user() -> None:
    class Short(Rings):
        def rollout_step(self, window: SimulationBatch, batch: Any) -> Any:
            return {"u": super().rollout_step(window, batch)["u"][1:]}

    with pytest.raises(UserCodeError, match=r"u in the shape \(9, 1, 2\) or \(9, 2\), but returned \(8, 1, 2\)"):
        run(Short())


def test_a_trajectory_ends_where_its_number_of_rows_changes_and_one_without_any_is_told_of() -> None:
    store, sizes = ValidationStore(100, ragged={"u"}), {0: [2, 2, 2, 2, 3, 2], 1: [2, 1, 2], 2: [0, 0, 0]}
    statics = StaticFields({"source": (5, 2)}, ragged={"source"})
    for simulation, of in sizes.items():
        statics.put(simulation, {"source": np.zeros((of[0], 2))})
        for step, size in enumerate(of):
            store.add(simulation, step, {"u": np.full((size, 2), 1.0)}, {"u": True})
        store.complete(simulation)
    forecasting = over(Rings(), store, statics)
    found = forecasting.run(lambda: False)
    assert found is not None
    assert found.num_trajectories == [1, 1]
    assert found.mse["u"] == pytest.approx([0.1**2, (0.5 + 0.4 * 0.9 - 1) ** 2])
    [warning] = forecasting.warnings
    assert "no rollout of 2 held-out simulations: fewer than 3 steps follow one another" in warning


def test_windows_whose_steps_differ_in_size_are_not_packed() -> None:
    window = np.empty((1, 2), object)
    window[0] = [np.zeros(3), np.zeros(4)]
    with pytest.raises(ValueError, match=r"the steps of a window have \[3, 4\] rows"):
        pack(window)
