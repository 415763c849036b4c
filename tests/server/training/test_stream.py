"""The batches of one rank: drawn, gathered, processed and collated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.firo import Firo
from stream_server.buffers.slots import Slots
from stream_server.errors import Closed, ProducerFailed, UserCodeError
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.support.buffer_saving import load, save


class PerSample(StreamServer):
    """Keeps what it is handed."""

    def prepare_training_attributes(self) -> None:
        self.handed: list[SimulationData] = []

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.handed.append(data)
        return np.append(data.parameters, data.time_step), data.fields["u"].ravel()


class Vectorised(StreamServer):
    """Takes whole batches and writes into them."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        batch.fields["u"] /= 2
        return {
            "u": batch.fields["u"],
            "ids": batch.simulation_ids,
            "there": batch.present["v"],
            "v": batch.fields["v"],
        }


def buffer_of(num: int) -> Buffer:
    """Samples 0 … num−1 of simulation 7; step i has u full of i + 1, and v only when i is even."""
    slots = Slots({"u": (2, 2), "v": ()}, num_slots=8)
    slots.allocate({"u": np.float64, "v": np.int32})
    buffer = Buffer(Fifo(capacity=8), slots)
    for slot in buffer.claim(num):
        slots.simulation_ids[slot] = 7
        slots.time_steps[slot] = slot
        slots.arrays["u"][slot] = slot + 1
        slots.arrays["v"][slot] = slot
        if slot % 2:
            slots.leave_out("v", [slot])
        buffer.enqueue([slot])
    buffer.admit()
    return buffer


def parameters_of(simulation: int) -> NDArray[np.float64]:
    return np.array([simulation, 0.5])


def stream_of(buffer: Buffer, server: StreamServer, batch_size: int = 2) -> BatchStream:
    server.prepare_training_attributes()
    return BatchStream(buffer, server, parameters_of=parameters_of, batch_size=batch_size, phases=Phases())


def test_the_contents_of_the_buffer_have_parameters() -> None:
    buffer, server = buffer_of(2), PerSample()
    stream_of(buffer, server)
    assert server.parameters_of(buffer.contents().simulation_ids).tolist() == [[7, 0.5], [7, 0.5]]


def test_samples_are_processed_one_by_one_and_stacked() -> None:
    batch = stream_of(buffer_of(2), PerSample()).draw(0)
    assert batch is not None
    x, y = batch.data
    assert x.tolist() == [[7, 0.5, 0], [7, 0.5, 1]]
    assert y.tolist() == [[1, 1, 1, 1], [2, 2, 2, 2]]
    assert x.dtype == y.dtype == np.float32
    assert batch.keys.tolist() == [[7, 7], [0, 1]]
    assert (batch.size, batch.num_first) == (2, 2)


def test_a_sample_is_a_read_only_view_with_the_fields_that_were_sent() -> None:
    buffer, server = buffer_of(2), PerSample()
    stream_of(buffer, server).draw(0)
    even, odd = server.handed
    assert np.shares_memory(even.fields["u"], buffer.slots.arrays["u"])
    with pytest.raises(ValueError, match="read-only"):
        even.fields["u"] /= 2
    assert set(even.fields) == {"u", "v"}
    assert even.fields["v"] == 0
    assert set(odd.fields) == {"u"}


def test_a_whole_batch_is_a_copy_that_may_be_written_into() -> None:
    buffer = buffer_of(2)
    batch = stream_of(buffer, Vectorised()).draw(0)
    assert batch is not None
    assert batch.data["u"][:, 0, 0].tolist() == [0.5, 1]
    assert batch.data["u"].dtype == np.float32
    assert batch.data["ids"].dtype == np.int64
    assert batch.data["there"].tolist() == [True, False]
    assert batch.data["v"].tolist() == [0, 0]
    assert buffer.slots.arrays["u"][:2, 0, 0].tolist() == [1, 2]


class Keeping(Vectorised):
    """Hands on what it was given, in the precision it has."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return batch.fields["v"][:, None]


def test_the_memory_of_a_batch_is_used_again_only_when_nobody_has_it() -> None:
    stream = stream_of(buffer_of(6), Keeping())
    first, second = stream.draw(0), stream.draw(0)
    assert first is not None
    assert second is not None
    assert first.data.ravel().tolist() == [0, 0]
    address = first.data.ctypes.data
    del first
    third = stream.draw(0)
    assert third is not None
    assert third.data.ctypes.data == address
    assert (second.data.ravel().tolist(), third.data.ravel().tolist()) == ([2, 0], [4, 0])


def test_iterating_gives_none_while_there_is_nothing_and_ends_when_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_server.server.training.stream.WAIT_S", 0.0)
    buffer = buffer_of(3)
    batches = iter(stream_of(buffer, PerSample()))
    first = next(batches)
    assert first is not None
    assert first.size == 2
    assert next(batches) is None
    buffer.close()
    last = next(batches)
    assert last is not None
    assert last.size == 1
    assert list(batches) == []


def test_a_failed_receiver_fails_the_draw() -> None:
    buffer = buffer_of(1)
    buffer.close(OSError("the network is gone"))
    with pytest.raises(ProducerFailed):
        stream_of(buffer, PerSample()).draw(0)


def test_the_rows_of_a_batch_are_free_once_it_is_settled() -> None:
    buffer = buffer_of(2)
    stream = stream_of(buffer, PerSample())
    stream.draw(0)
    assert buffer.slots.num_free == 6
    stream.release()
    assert buffer.slots.num_free == 8


def restored(buffer: Buffer) -> Buffer:
    """A new buffer that goes on where this one is."""
    state, fields = save(buffer)
    slots = Slots(buffer.slots.shapes, buffer.slots.num_slots)
    slots.allocate({name: array.dtype for name, array in buffer.slots.arrays.items()})
    other = Buffer(Fifo(capacity=buffer.capacity), slots)
    load(other, state, fields)
    return other


def test_batches_that_an_earlier_incarnation_did_not_train_are_formed_first_and_in_their_order() -> None:
    buffer = buffer_of(8)
    for num in (2, 3):
        buffer.draw(num, 0)
    stream = stream_of(restored(buffer), PerSample(), batch_size=3)
    batches = [stream.draw(0) for _ in range(3)]
    assert [batch and batch.keys[1].tolist() for batch in batches] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert [batch and batch.num_first for batch in batches] == [2, 3, 3]


def test_a_restored_batch_is_formed_just_as_it_was() -> None:
    buffer = buffer_of(4)
    before = stream_of(buffer, Vectorised()).draw(0)
    after = stream_of(restored(buffer), Vectorised()).draw(0)
    assert before is not None
    assert after is not None
    for name, values in before.data.items():
        np.testing.assert_array_equal(after.data[name], values, strict=True)


def test_a_restored_batch_that_is_larger_than_those_that_are_drawn_now_is_formed_whole() -> None:
    buffer = buffer_of(8)
    buffer.draw(4, 0)
    stream = stream_of(restored(buffer), Vectorised(), batch_size=2)
    for size in (4, 2, 2):
        batch = stream.draw(0)
        assert batch is not None
        assert {len(values) for values in batch.data.values()} == {batch.size} == {size}


def test_a_restored_batch_was_counted_when_it_was_drawn() -> None:
    buffer = buffer_of(4)
    first = stream_of(buffer, PerSample())
    first.draw(0)
    second = stream_of(restored(buffer), PerSample())
    second.num_drawn = first.num_drawn
    second.draw(0)
    assert second.num_drawn == 2
    second.draw(0)
    assert second.num_drawn == 4


def test_a_restored_batch_needs_no_new_samples() -> None:
    buffer, asked = buffer_of(2), []
    buffer.draw(2, 0)
    server = PerSample()
    server.prepare_training_attributes()
    stream = BatchStream(
        restored(buffer),
        server,
        parameters_of=parameters_of,
        batch_size=2,
        phases=Phases(),
        before_draw=lambda: asked.append("fill"),
    )
    assert stream.draw(0) is not None
    assert asked == []
    assert stream.draw(0) is None
    assert asked == ["fill"]


def test_the_rows_of_a_restored_batch_are_free_once_it_is_settled() -> None:
    buffer = buffer_of(4)
    for _ in range(2):
        buffer.draw(2, 0)
    other = restored(buffer)
    stream = stream_of(other, PerSample())
    num_free = []
    for _ in range(2):
        stream.draw(0)
        num_free.append(other.slots.num_free)
    stream.release()
    assert [*num_free, other.slots.num_free] == [4, 6, 8]


def test_a_batch_that_is_not_settled_can_be_restored_again_and_again() -> None:
    buffer = buffer_of(5)
    stream_of(buffer, PerSample()).draw(0)
    for _ in range(3):
        buffer = restored(buffer)
        batch = stream_of(buffer, PerSample()).draw(0)
        assert batch is not None
        assert batch.keys[1].tolist() == [0, 1]


class Raising(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        raise KeyError("temperature")


def test_what_the_user_raises_is_named_and_the_sample_kept(tmp_path: Path) -> None:
    buffer, server = buffer_of(2), Raising()
    server.output_dir = tmp_path
    with pytest.raises(UserCodeError, match=r"Raising\.process_simulation_data raised KeyError: 'temperature'"):
        stream_of(buffer, server).draw(0)
    with np.load(tmp_path / "failed-sample.npz") as sample:
        assert sample["simulation_id"] == 7
        assert sample["field_u"].tolist() == [[1, 1], [1, 1]]
    buffer.close()
    with pytest.raises(Closed):
        stream_of(buffer, server).draw(0)


class Ragged(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return np.zeros(data.time_step + 1)


def test_samples_of_different_shapes_are_refused() -> None:
    with pytest.raises(UserCodeError, match=r"arrays of the shapes \(1,\) and \(2,\) cannot be stacked"):
        stream_of(buffer_of(2), Ragged()).draw(0)


class Refilling(PerSample):
    """Returns one of `num` arrays, which it fills by turns, and a mask that is always the same."""

    def __init__(self, num: int = 1) -> None:
        super().__init__()
        self.arrays, self.mask = np.zeros((num, 4)), np.ones(4)

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        array = self.arrays[data.time_step % len(self.arrays)]
        array[:] = data.fields["u"].ravel()
        return array, {"mask": self.mask}


@pytest.mark.parametrize("num", [1, 2])
def test_an_array_that_is_filled_anew_for_each_sample_is_refused(num: int) -> None:
    with pytest.raises(UserCodeError, match=r"fills an array anew that it has returned.*return a new array each time"):
        stream_of(buffer_of(3), Refilling(num), batch_size=3).draw(0)


@pytest.mark.parametrize("num", [1, 2])
def test_an_array_that_is_filled_anew_once_its_batch_is_made_does_no_harm(num: int) -> None:
    stream = stream_of(buffer_of(3), Refilling(num), batch_size=num)
    for first in range(0, 3 - num, num):
        batch = stream.draw(0)
        assert batch is not None
        assert batch.data[0][:, 0].tolist() == [step + 1 for step in range(first, first + num)]
        assert batch.data[1]["mask"].tolist() == [[1, 1, 1, 1]] * num


def test_an_array_that_is_filled_anew_for_each_sample_of_a_validation_is_refused() -> None:
    batch = SimulationBatch(
        simulation_ids=np.zeros(2, np.int64),
        time_steps=np.arange(2),
        parameters=np.zeros((2, 1)),
        fields={"u": np.arange(8.0).reshape(2, 4)},
        present={"u": np.ones(2, bool)},
    )
    with pytest.raises(UserCodeError, match="fills an array anew"):
        Refilling().process_batch(batch, None)


class Forgetful(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return data.fields["u"] if data.time_step else None


@pytest.mark.parametrize("first", [0, 1])
def test_none_for_a_sample_is_refused_where_no_loader_drops_it(first: int) -> None:
    buffer = buffer_of(3)
    buffer.slots.time_steps[:3] = np.arange(3)[::-1] if first else np.arange(3)
    with pytest.raises(UserCodeError, match=r"Forgetful\.process_simulation_data returned None, which leaves a sample"):
        stream_of(buffer, Forgetful(), batch_size=3).draw(0)


class Masking(PerSample):
    """Returns what a mask leaves of the field, in one of the ways to do so."""

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return np.ma.masked_less(data.fields["u"], 2)


class MaskingBatches(PerSample):
    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return {"u": np.ma.masked_less(batch.fields["u"], 2)}


@pytest.mark.parametrize("server", [Masking, MaskingBatches])
def test_masked_values_are_refused(server: type[StreamServer]) -> None:
    with pytest.raises(UserCodeError, match=r"masked values.*return array\.filled"):
        stream_of(buffer_of(2), server()).draw(0)


class Large(PerSample):
    """Returns its field and a number that is too large for a float in the given time steps."""

    def __init__(self, *too_large: int, unit: float = 1.0) -> None:
        super().__init__()
        self.too_large, self.unit = too_large, unit

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return data.fields["u"], (1e39 if data.time_step in self.too_large else 1.0) * self.unit


class Hot(PerSample):
    """Returns a field that is too large from time step 1 on."""

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return data.fields["u"]


def test_the_field_whose_numbers_are_too_large_is_named(caplog: pytest.LogCaptureFixture) -> None:
    buffer = buffer_of(4)
    buffer.slots.arrays["u"][1:3, 0, 1] = -1e39
    batch = stream_of(buffer, Hot(), batch_size=4).draw(0)
    assert batch is not None
    assert batch.keys[1].tolist() == [0, 3]
    assert "too large for training.precision, as (simulation, time step): (7, 1), (7, 2); field u. Scale" in caplog.text


@pytest.mark.parametrize("prefetch", [0, 2])
def test_samples_with_numbers_too_large_for_the_precision_are_left_out_and_told(
    prefetch: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Large(1, 2)
    server.prepare_training_attributes()
    with BatchStream(
        buffer_of(6), server, parameters_of=parameters_of, batch_size=4, phases=Phases(), prefetch=prefetch
    ) as stream:
        batch = stream.draw(0)
        assert batch is not None
        assert batch.data[0][:, 0, 0].tolist() == [1, 4]
        assert batch.data[1].tolist() == [1, 1]
        assert batch.keys.tolist() == [[7, 7], [0, 3]]
        assert (batch.size, batch.num_first, batch.num_dropped, batch.num_first_dropped) == (2, 2, 2, 2)
        assert stream.num_dropped == 0
        batch = stream.form_again()
        stream.release()
        assert (batch.size, stream.num_drawn, stream.num_dropped) == (2, 4, 2)
    assert "2 samples are left out, since numbers that Large.process_simulation_data returned are too" in caplog.text
    assert "as (simulation, time step): (7, 1), (7, 2). Scale them there, or train with 64-true" in caplog.text


def test_a_batch_of_nothing_but_such_samples_stays_for_the_training_to_skip(caplog: pytest.LogCaptureFixture) -> None:
    batch = stream_of(buffer_of(2), Large(0, 1)).draw(0)
    assert batch is not None
    assert np.isinf(batch.data[1]).all()
    assert (batch.size, batch.num_dropped) == (2, 0)
    assert "a batch of 2 samples makes no update, since numbers that Large.process_simulation_data" in caplog.text


def test_large_numbers_that_are_scaled_are_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    batch = stream_of(buffer_of(2), Large(0, unit=1e-39)).draw(0)
    assert batch is not None
    assert batch.data[1].tolist() == [1.0, np.float32(1e-39)]
    assert not caplog.text


class Normalized(Vectorised):
    """Its batches are at order one."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return {"u": self.normalization.normalize("u", batch.fields["u"])}


def observing(server: StreamServer) -> StreamServer:
    server.normalization = Normalization(SoloRanks(), {"u": (), "v": ()}, num_parameters=2)
    return server


def test_statistics_see_each_sample_when_it_is_first_drawn_and_optional_fields_where_they_are() -> None:
    buffer, server = buffer_of(4), observing(PerSample())
    stream = stream_of(buffer, server, batch_size=3)
    stream.draw(0)
    server.normalization.sync()
    arrays = server.normalization.arrays()
    assert server.normalization.num_samples == 3
    assert (arrays["fields.u.count"], arrays["fields.u.mean"]) == (12, 2)
    assert (arrays["fields.v.count"], arrays["fields.v.mean"]) == (2, 1)
    assert arrays["parameters.mean"].tolist() == [7, 0.5]


def test_statistics_see_a_sample_that_is_drawn_again_and_again_once() -> None:
    buffer, server = buffer_of(6), observing(PerSample())
    firo = Firo(capacity=8, watermark=1, pseudo_epochs=5, seed=3)
    firo.put(buffer.policy.slots().tolist())
    buffer.policy = firo
    stream = stream_of(buffer, server, batch_size=4)
    for _ in range(3):
        stream.draw(0)
    buffer.close()
    assert sum(batch.size for batch in stream if batch is not None) == 6 * 5 - 3 * 4
    server.normalization.sync()
    assert server.normalization.num_samples == 6
    assert server.normalization.mean["u"] == 3.5


def test_a_restored_batch_was_seen_when_it_was_drawn() -> None:
    buffer = buffer_of(4)
    stream_of(buffer, observing(PerSample())).draw(0)
    server = observing(PerSample())
    stream = stream_of(restored(buffer), server)
    stream.draw(0)
    server.normalization.sync()
    assert server.normalization.num_samples == 0


def test_the_first_batch_is_formed_again_once_there_are_statistics() -> None:
    server = observing(Normalized())
    stream = stream_of(buffer_of(2), server)
    first = stream.draw(0)
    server.normalization.sync()
    again = stream.form_again()
    assert first is not None
    assert first.data["u"][:, 0, 0].tolist() == [1, 2]
    assert again.data["u"][:, 0, 0].tolist() == [-1, 1]
    assert (again.size, again.num_first, again.keys.tolist()) == (first.size, first.num_first, first.keys.tolist())
    server.normalization.sync()
    assert server.normalization.num_samples == 2
