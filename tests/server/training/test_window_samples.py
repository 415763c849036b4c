"""Windows as users meet them: in batches, in statistics, held out, in the account, in a trial."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.buffers import Fifo, Slots, WindowBuffer, WindowShape
from stream_server.server.intake.account import (
    RankAccount,
    Received,
    SimulationEnd,
    TrainedCounts,
    WindowCounts,
    close_account,
)
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.forecast import FLOATS
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.rendering import Prediction, render
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.support.settings import length_of
from tests.support.studies import StudyFolder

SHAPE = WindowShape(length=3, spacing=2, stride=1, num_steps=7)
NUM_STEPS = 7


class PerSample(StreamServer):
    """Keeps what it is handed."""

    def prepare_training_attributes(self) -> None:
        self.handed: list[SimulationData] = []

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.handed.append(data)
        return data.fields["u"]


class Vectorised(StreamServer):
    """Keeps the batch."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.batch = batch
        return batch.fields["u"]


def buffer() -> WindowBuffer:
    """Simulation 7 with steps 0 … 6; u of step i is full of i, and v is missing in step 3: windows of 0, 1 and 2."""
    slots = Slots({"u": (2,), "v": ()}, num_slots=20)
    slots.allocate({"u": np.float64, "v": np.int32})
    found = WindowBuffer(Fifo(capacity=5), slots, shape=SHAPE, most_kept=100)
    for step in range(NUM_STEPS):
        [slot] = found.claim(1)
        slots.simulation_ids[slot], slots.time_steps[slot] = 7, step
        slots.arrays["u"][slot] = slots.arrays["v"][slot] = step
        if step == 3:
            slots.leave_out("v", [slot])
        found.enqueue([slot])
    found.admit()
    return found


def parameters_of(simulation: int) -> NDArray[np.float64]:
    return np.array([simulation + 0.5])


def stream_of(server: StreamServer, batch_size: int) -> BatchStream:
    server.prepare_training_attributes()
    return BatchStream(buffer(), server, parameters_of=parameters_of, batch_size=batch_size, phases=Phases())


def test_a_sample_has_its_steps_and_a_field_that_was_sent_in_all_of_them() -> None:
    server = PerSample()
    batch = stream_of(server, 3).draw(0)
    assert batch is not None
    assert batch.data.tolist() == [[[float(i)] * 2 for i in range(first, first + 5, 2)] for first in range(3)]
    assert batch.keys.tolist() == [[7, 7, 7], [0, 1, 2]]
    assert [data.time_step for data in server.handed] == [0, 1, 2]
    assert [data.time_steps.tolist() for data in server.handed if data.time_steps is not None] == [
        [0, 2, 4],
        [1, 3, 5],
        [2, 4, 6],
    ]
    assert [sorted(data.fields) for data in server.handed] == [["u", "v"], ["u"], ["u", "v"]]
    with pytest.raises(ValueError, match="read-only"):
        server.handed[0].fields["u"] /= 2


def test_a_batch_has_the_steps_of_each_window_in_its_second_axis() -> None:
    server = Vectorised()
    assert stream_of(server, 2).draw(0) is not None
    batch = server.batch
    assert (len(batch), batch.simulation_ids.tolist()) == (2, [7, 7])
    assert batch.time_steps.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert batch.parameters.tolist() == [[7.5], [7.5]]
    assert (batch.fields["u"].shape, batch.fields["v"].shape) == ((2, 3, 2), (2, 3))
    assert batch.present["v"].tolist() == [[True, True, True], [True, False, True]]


def test_the_contents_of_the_buffer_are_windows() -> None:
    contents = buffer().contents()
    assert contents.time_steps.tolist() == [[0, 2, 4], [1, 3, 5], [2, 4, 6]]
    assert contents.fields["u"][:, :, 0].tolist() == contents.time_steps.tolist()


def test_the_statistics_count_each_step_once() -> None:
    server = Vectorised()
    server.normalization = Normalization(SoloRanks(), {"u": ()}, num_parameters=1)
    stream = stream_of(server, 1)
    for _ in range(3):
        assert stream.draw(0) is not None
    server.normalization.sync()
    assert server.normalization.num_samples == NUM_STEPS
    assert server.normalization.mean["u"] == 3.0


def test_held_out_windows_are_those_of_the_complete_simulations() -> None:
    store = ValidationStore(3)
    for simulation, steps in ((0, range(NUM_STEPS)), (1, [6, 5, 4, 3, 1, 0]), (2, range(NUM_STEPS))):
        for step in steps:
            store.add(simulation, step, {"u": np.full(2, 10.0 * simulation + step)}, {"u": True})
    samples = HeldOutSamples(store=store, parameters_of=parameters_of, window_shape=SHAPE)
    assert samples() is None
    for simulation in (0, 1):
        store.complete(simulation)
    found = samples()
    assert found is not None
    whole = found.batch()
    assert whole.simulation_ids.tolist() == [0, 0, 0, 1]
    assert whole.time_steps.tolist() == [[0, 2, 4], [1, 3, 5], [2, 4, 6], [1, 3, 5]]
    assert whole.fields["u"][:, :, 0].tolist() == [[0, 2, 4], [1, 3, 5], [2, 4, 6], [11, 13, 15]]
    assert whole.parameters.tolist() == [[0.5], [0.5], [0.5], [1.5]]
    assert found[3:5].time_steps.tolist() == [[1, 3, 5]]


def test_the_picture_of_a_window_is_of_its_last_step() -> None:
    u = np.arange(6.0).reshape(3, 2)
    sample = SimulationData(
        simulation_id=0, time_step=0, parameters=np.zeros(1), fields={"u": u}, time_steps=np.array([0, 2, 4])
    )
    prediction = Prediction(output=np.array([4.5, 5.5]), target=np.array([4.0, 5.0]))
    truth, predicted = render(sample, prediction, lambda name, array: array, FLOATS)["u"]
    assert (truth.tolist(), predicted.tolist()) == ([4.0, 5.0], [4.5, 5.5])


def closed(*, drawn: int, late: int = 0, num_steps: int | None = NUM_STEPS) -> Any:
    """A simulation of which step 3 was rejected, and one of which nothing came."""
    received = Received(
        accepted=6,
        rejected={"nonfinite": 1},
        windows=WindowCounts(of_accepted=2, of_settled=3, late=late),
    )
    rank = RankAccount(intake={0: received}, drawn=drawn)
    rank = msgspec.json.decode(msgspec.json.encode(rank), type=RankAccount)
    ends = {
        0: SimulationEnd(state="finished", num_steps=num_steps, num_sent=7),
        1: SimulationEnd(state="given_up", num_steps=num_steps),
    }
    learned = TrainedCounts(trained=drawn)
    return close_account([rank], ends, learned, complete=True, num_samples_of=lambda num: max(0, num - SHAPE.span))


def test_the_account_has_time_steps_and_windows() -> None:
    account = closed(drawn=2)
    assert account.problems == []
    assert (account.expected, account.accepted, account.trained) == (14, 6, 2)
    assert account.windows == {"expected": 6, "made": 2, "impossible": 4, "late": 0}
    assert closed(drawn=1, late=1).windows == {"expected": 6, "made": 1, "impossible": 4, "late": 1}
    assert closed(drawn=2, num_steps=None).windows == {"expected": 3, "made": 2, "impossible": 1, "late": 0}


@pytest.mark.parametrize("drawn", [1, 3])
def test_a_window_too_many_or_too_few_is_noticed(drawn: int) -> None:
    assert any("rank 0 accepted 2 samples" in problem for problem in closed(drawn=drawn).problems)


def test_a_study_is_as_long_as_its_windows(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path).load(
        {
            "samples": {"window": {"length": 5, "spacing": 2, "stride": 3}},
            "buffer.routing": "simulations",
            "training.draws_per_sample": 2,
        }
    )
    per_simulation = len(range(0, 100 - 8, 3))
    assert config.samples_per_simulation == per_simulation
    assert length_of(config, 1).samples == 100 * per_simulation
    assert length_of(config, 1).draws == 200 * per_simulation
