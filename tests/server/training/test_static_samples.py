"""Fields that are sent once per simulation as users meet them: in samples, batches, statistics and held out."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Fifo, Slots, WindowBuffer, WindowShape
from stream_server.buffers.statics import SURPLUS, SURPLUS_BYTES, StaticFields
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer

SHAPE = WindowShape(length=2, num_steps=3)
SIMULATIONS = (9, 4)


class PerSample(StreamServer):
    """Keeps what it is handed."""

    def prepare_training_attributes(self) -> None:
        self.handed: list[SimulationData] = []

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.handed.append(data)
        return data.fields["mesh"]


class Vectorised(StreamServer):
    """Keeps the batch."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.batch = batch
        return batch.fields["u"]


def mesh_of(simulation: int) -> NDArray[np.float64]:
    return np.arange(6.0).reshape(3, 2) + 100 * simulation


def parameters_of(simulation: int) -> NDArray[np.float64]:
    return np.array([simulation + 0.5])


def filled(*, windows: bool = False) -> Buffer:
    """Steps 0, 1 and 2 of two simulations."""
    slots = Slots({"u": (2,)}, 20, {"mesh": (3, 2)})
    slots.allocate({"u": np.float64})
    policy = Fifo(capacity=6)
    buffer = WindowBuffer(policy, slots, shape=SHAPE, most_kept=100) if windows else Buffer(policy, slots)
    for simulation in SIMULATIONS:
        slots.statics.put(simulation, {"mesh": mesh_of(simulation)})
        for step in range(3):
            [slot] = buffer.claim(1)
            slots.simulation_ids[slot], slots.time_steps[slot] = simulation, step
            slots.arrays["u"][slot] = step
            buffer.enqueue([slot])
    buffer.admit()
    return buffer


def draw(server: StreamServer, batch_size: int, buffer: Buffer) -> BatchStream:
    server.prepare_training_attributes()
    stream = BatchStream(buffer, server, parameters_of=parameters_of, batch_size=batch_size, phases=Phases())
    assert stream.draw(0) is not None
    return stream


@pytest.mark.parametrize("windows", [False, True])
def test_each_sample_and_each_row_of_a_batch_has_the_field_of_its_simulation(windows: bool) -> None:
    single, whole = PerSample(), Vectorised()
    draw(single, 4, filled(windows=windows))
    draw(whole, 4, filled(windows=windows))
    assert single.handed[-1].simulation_id == 4
    for data in [*single.handed, *whole.batch.samples()]:
        np.testing.assert_array_equal(data.fields["mesh"], mesh_of(data.simulation_id))
    assert whole.batch.fields["mesh"].shape == (4, 3, 2)
    assert whole.batch.present["mesh"].tolist() == [True] * 4
    assert whole.batch.fields["u"].shape == ((4, 2, 2) if windows else (4, 2))
    with pytest.raises(ValueError, match="read-only"):
        single.handed[0].fields["mesh"] += 1
    # A batch is the user's own.
    whole.batch.fields["mesh"][:] = 0
    again = Vectorised()
    draw(again, 4, filled(windows=windows))
    assert again.batch.fields["mesh"].any()


def test_the_statistics_count_each_simulation_once() -> None:
    server = Vectorised()
    server.normalization = Normalization(SoloRanks(), {"u": (), "mesh": (3, 2)})
    stream = draw(server, 2, filled())
    for _ in range(2):
        stream.draw(0)
    server.normalization.sync()
    np.testing.assert_allclose(server.normalization.mean["mesh"], np.mean([mesh_of(it) for it in SIMULATIONS], axis=0))
    np.testing.assert_allclose(server.normalization.std["mesh"], np.std([mesh_of(it) for it in SIMULATIONS], axis=0))
    assert server.normalization.mean["u"] == 1.0
    assert server.normalization.arrays()["fields.mesh.count"].tolist() == [[2, 2]] * 3


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_held_out_samples_have_it_too(shape: WindowShape | None) -> None:
    store, statics = ValidationStore(10), StaticFields({"mesh": (3, 2)})
    for simulation in SIMULATIONS:
        statics.put(simulation, {"mesh": mesh_of(simulation)})
        for step in range(3):
            store.add(simulation, step, {"u": np.full(2, step)}, {"u": True})
        store.complete(simulation)
    found = HeldOutSamples(store=store, parameters_of=parameters_of, window_shape=shape, statics=statics)()
    assert found is not None
    batch = found[1:].batch()
    assert len(batch) == (5 if shape is None else 3)
    assert batch.simulation_ids.tolist() == ([4, 4, 9, 9, 9] if shape is None else [4, 9, 9])
    for data in batch.samples():
        np.testing.assert_array_equal(data.fields["mesh"], mesh_of(data.simulation_id))
        assert data.parameters.tolist() == [data.simulation_id + 0.5]


def test_a_value_taken_out_of_saved_rows_is_kept_as_an_array() -> None:
    statics = StaticFields({"gravity": ()})
    statics.put(3, {"gravity": np.arange(3.0)[1]})
    assert statics[3]["gravity"].shape == ()
    assert statics.gather(np.array([3, 3]))["gravity"].tolist() == [1.0, 1.0]


def test_of_large_fields_only_those_are_kept_that_are_needed() -> None:
    statics = StaticFields({"mesh": (SURPLUS_BYTES // 8,)})
    mesh = np.zeros(SURPLUS_BYTES // 8)
    for simulation in range(SURPLUS + 1):
        statics.put(simulation, {"mesh": mesh})
    statics.keep(lambda: lambda simulation: simulation == 2)
    assert len(statics) == 1
    for simulation in (5, 6):
        statics.put(simulation, {"mesh": mesh})
    statics.keep(lambda: lambda simulation: simulation == 2)
    assert len(statics) == 1


def test_what_has_samples_stays_and_all_else_goes() -> None:
    buffer = filled()
    statics = buffer.slots.statics
    for simulation in range(100, 100 + SURPLUS):
        statics.put(simulation, {"mesh": mesh_of(simulation)})
    buffer.free_statics(lambda simulation: simulation == 107)
    assert [simulation for simulation in range(200) if simulation in statics] == [4, 9, 107]
    stream = draw(Vectorised(), 5, buffer)
    for simulation in range(200, 200 + 2 * SURPLUS):
        statics.put(simulation, {"mesh": mesh_of(simulation)})
    # Of simulation 9 all samples are drawn, but their batch is not trained yet.
    buffer.free_statics(lambda simulation: False)
    assert [simulation for simulation in range(300) if simulation in statics] == [4, 9]
    stream.release()
    for simulation in range(200, 200 + 2 * SURPLUS):
        statics.put(simulation, {"mesh": mesh_of(simulation)})
    buffer.free_statics(lambda simulation: False)
    assert [simulation for simulation in range(300) if simulation in statics] == [4]
