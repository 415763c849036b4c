"""Batches that are drawn ahead and formed on a thread of their own, beside the step."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.reservoir import Reservoir
from stream_server.buffers.slots import Slots
from stream_server.errors import Closed, ProducerFailed, UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.server.training.test_stream import Normalized, PerSample, buffer_of, observing, parameters_of, restored
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

LONG_S = 60.0


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs no study keeps the sample that its class could not process in the current folder."""
    monkeypatch.chdir(tmp_path)


@contextmanager
def prefetching(buffer: Buffer, server: StreamServer, *, num: int = 1, batch_size: int = 2) -> Iterator[BatchStream]:
    server.prepare_training_attributes()
    stream = BatchStream(
        buffer, server, parameters_of=parameters_of, batch_size=batch_size, phases=Phases(), prefetch=num
    )
    with stream:
        yield stream


def drawn(stream: BatchStream, timeout_s: float = 0.0) -> Batch:
    batch = stream.draw(timeout_s)
    assert batch is not None
    return batch


def steps_of(batch: Batch) -> list[int]:
    steps: list[int] = batch.keys[1].tolist()
    return steps


class Watched(PerSample):
    """Says when it processes a time step, and on which thread; waits there for leave if it was told to."""

    def prepare_training_attributes(self) -> None:
        super().prepare_training_attributes()
        self.threads: dict[int, str] = {}
        self.begun = {step: threading.Event() for step in range(8)}
        self.leave = {step: threading.Event() for step in range(8)}
        self.held_at: set[int] = set()

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.threads[data.time_step] = threading.current_thread().name
        self.begun[data.time_step].set()
        if data.time_step in self.held_at:
            assert self.leave[data.time_step].wait(LONG_S)
        return super().process_simulation_data(data, config)


def test_the_next_batch_is_formed_while_this_one_is_trained() -> None:
    server = Watched()
    with prefetching(buffer_of(8), server) as stream:
        assert steps_of(drawn(stream)) == [0, 1]
        assert server.begun[2].wait(LONG_S)
        assert steps_of(drawn(stream)) == [2, 3]
    assert set(server.threads.values()) == {"prefetch"}


def test_as_many_batches_as_asked_for_are_drawn_ahead() -> None:
    server = Watched()
    with prefetching(buffer_of(8), server, num=2) as stream:
        drawn(stream)
        assert server.begun[5].wait(LONG_S)
        stream.quiesce()
        assert not server.begun[6].is_set()
        assert stream.num_drawn == 6


def test_batches_are_those_of_a_stream_without_it() -> None:
    def data_of(num: int) -> list[Any]:
        with prefetching(buffer_of(7), PerSample(), num=num) as stream:
            batches = [drawn(stream) for _ in range(3)]
            stream._buffer.close()
            batches += [batch for batch in stream if batch is not None]
            return [(batch.keys.tolist(), batch.num_first, [it.tolist() for it in batch.data]) for batch in batches]

    without = data_of(0)
    assert len(without) == 4
    assert data_of(1) == data_of(3) == without


def test_a_batch_that_is_still_being_formed_is_waited_for() -> None:
    server = Watched()
    with prefetching(buffer_of(4), server) as stream:
        server.held_at = {3}
        drawn(stream)
        threading.Timer(0.05, server.leave[3].set).start()
        assert steps_of(drawn(stream)) == [2, 3]


def test_the_rows_of_what_was_drawn_ahead_stay_until_it_is_trained() -> None:
    buffer = buffer_of(8)
    with prefetching(buffer, PerSample(), num=2) as stream:
        drawn(stream)
        assert buffer.slots.num_free == 0
        stream.release()
        assert buffer.slots.num_free == 2
        drawn(stream)
        drawn(stream)
        assert buffer.slots.num_free == 4


class RaisingLater(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        if data.time_step == 5:
            raise KeyError("temperature")
        return super().process_simulation_data(data, config)


@pytest.mark.parametrize("num", [0, 1, 3])
def test_what_the_user_raises_in_the_third_batch_comes_with_that_batch(tmp_path: Path, num: int) -> None:
    server = RaisingLater()
    server.output_dir = tmp_path
    with prefetching(buffer_of(8), server, num=num) as stream:
        assert [steps_of(drawn(stream)) for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(UserCodeError, match=r"RaisingLater.process_simulation_data raised KeyError: 'temperature'"):
            stream.draw(0)
    with np.load(tmp_path / "failed-sample.npz") as sample:
        assert sample["time_step"] == 5


class Exiting(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        raise SystemExit(0)


def test_user_code_cannot_end_the_thread() -> None:
    with (
        prefetching(buffer_of(4), Exiting()) as stream,
        pytest.raises(UserCodeError, match="raised SystemExit: 0"),
    ):
        stream.draw(0)


class Reducing(PerSample):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return self.all_reduce(data.fields["u"])


def test_user_code_on_that_thread_may_not_communicate() -> None:
    with (
        prefetching(buffer_of(4), Reducing()) as stream,
        pytest.raises(UserCodeError, match="all_reduce must be called in the main thread"),
    ):
        stream.draw(0)


def test_what_is_left_comes_before_the_end() -> None:
    buffer = buffer_of(4)
    with prefetching(buffer, PerSample(), num=3) as stream:
        first = drawn(stream)
        buffer.close()
        assert [steps_of(first), steps_of(drawn(stream))] == [[0, 1], [2, 3]]
        with pytest.raises(Closed):
            stream.draw(0)


def test_a_failed_receiver_fails_the_next_draw() -> None:
    buffer = buffer_of(4)
    with prefetching(buffer, PerSample()) as stream:
        drawn(stream)
        buffer.close(OSError("the network is gone"))
        with pytest.raises(ProducerFailed):
            stream.draw(0)


def test_batches_ahead_are_saved_as_drawn_and_restored_in_their_order() -> None:
    buffer = buffer_of(8)
    with prefetching(buffer, PerSample(), num=2) as stream:
        drawn(stream)
        num_drawn = stream.num_drawn
        other = restored(buffer)
    with prefetching(other, PerSample(), num=1) as stream:
        stream.load_state_dict({"num_drawn": num_drawn, "num_dropped": 0, "prefetch_s": 0.0})
        assert [steps_of(drawn(stream)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert stream.num_drawn == 8
    with prefetching(restored(buffer), PerSample(), num=0) as stream:
        assert [steps_of(drawn(stream)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_batches_ahead_are_formed_again_when_the_statistics_have_changed() -> None:
    buffer, server = buffer_of(8), observing(Normalized())
    with prefetching(buffer, server, num=2) as stream:
        drawn(stream)
        stream.quiesce()
        server.normalization.sync()
        u = np.arange(1, 7)
        assert server.normalization.num_samples == 6
        again = stream.form_again()
        np.testing.assert_allclose(again.data["u"][:, 0, 0], ((u - u.mean()) / u.std())[:2], rtol=1e-6)
        assert steps_of(again) == [0, 1]
        np.testing.assert_allclose(drawn(stream).data["u"][:, 0, 0], ((u - u.mean()) / u.std())[2:4], rtol=1e-6)
        server.normalization.sync()
        u = np.arange(1, 9)
        np.testing.assert_allclose(drawn(stream).data["u"][:, 0, 0], ((u - u.mean()) / u.std())[4:6], rtol=1e-6)


def test_no_user_code_runs_on_the_thread_once_it_has_settled() -> None:
    server = Watched()
    with prefetching(buffer_of(8), server, num=3) as stream:
        server.held_at = {5}
        drawn(stream)
        threading.Timer(0.05, server.leave[5].set).start()
        stream.quiesce()
        assert server.begun[7].is_set()
        assert stream.prefetch_s > 0


def test_what_was_begun_is_left_when_the_stream_ends() -> None:
    server = Watched()
    with prefetching(buffer_of(8), server, num=3) as stream:
        server.held_at = {2}
        drawn(stream)
        assert server.begun[2].wait(LONG_S)
        threading.Timer(0.05, server.leave[2].set).start()
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
    assert not server.begun[4].is_set()


class Halving(StreamServer):
    """Writes into its batch, and says with which statistics it was formed."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        batch.fields["u"] /= 2
        return batch.time_steps, batch.fields["u"], self.normalization.version


def test_a_transform_that_writes_into_its_batch_spoils_no_other() -> None:
    slots = Slots({"u": ()}, num_slots=64)
    slots.allocate({"u": np.float64})
    buffer = Buffer(Reservoir(capacity=16, watermark=1, seed=1), slots)
    for slot in buffer.claim(16):
        slots.simulation_ids[slot], slots.time_steps[slot], slots.arrays["u"][slot] = 7, slot, slot
        buffer.enqueue([slot])
    buffer.admit()
    with prefetching(buffer, Halving(), num=3, batch_size=8) as stream:
        kept = []
        for _ in range(200):
            steps, u, _ = drawn(stream).data
            assert (u == steps / 2).all()
            kept = [*kept[-5:], (steps, u)]
            assert all((earlier == those / 2).all() for those, earlier in kept)


class PrefetchMachine(RuleBasedStateMachine):
    """Samples come, batches are taken and trained, statistics change, servers die and go on; each once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.num_put = 0
        self.trained: list[int] = []
        self.holds: list[int] = []
        self.buffer = self.new_buffer()
        self.begin(2)

    def new_buffer(self) -> Buffer:
        slots = Slots({"u": ()}, num_slots=64)
        slots.allocate({"u": np.float64})
        return Buffer(Fifo(capacity=24), slots)

    def begin(self, num: int) -> None:
        self.server = Halving()
        self.stream = BatchStream(
            self.buffer, self.server, parameters_of=parameters_of, batch_size=3, phases=Phases(), prefetch=num
        )
        self.stream.__enter__()

    def teardown(self) -> None:
        self.stream.__exit__()

    @precondition(lambda self: not self.buffer._gate.closed)
    @rule(num=strategies.integers(1, 6))
    def put(self, num: int) -> None:
        for _ in range(min(num, 24 - self.buffer.population)):
            (slot,) = self.buffer.claim(1)
            slots = self.buffer.slots
            slots.simulation_ids[slot], slots.time_steps[slot] = 7, self.num_put
            slots.arrays["u"][slot] = 2 * self.num_put
            self.buffer.enqueue([slot])
            self.num_put += 1
        self.buffer.admit()

    @rule()
    def take(self) -> None:
        self.trained += self.holds
        self.holds = []
        try:
            batch = self.stream.draw(0)
        except Closed:
            assert self.trained == list(range(self.num_put))
            return
        if batch is not None:
            steps, u, version = batch.data
            assert (u == steps).all()
            assert version == self.server.normalization.version
            self.holds = steps.tolist()

    @rule()
    def train(self) -> None:
        self.stream.release()
        self.trained += self.holds
        self.holds = []

    @rule()
    def change_statistics(self) -> None:
        self.server.normalization.version += 1

    @precondition(lambda self: self.holds)
    @rule()
    def form_again(self) -> None:
        steps, u, version = self.stream.form_again().data
        assert (steps.tolist(), u.tolist(), version) == (self.holds, self.holds, self.server.normalization.version)

    @rule()
    def close(self) -> None:
        self.buffer.close()

    @rule(num=strategies.integers(0, 4), settles=strategies.booleans())
    def die_and_go_on(self, num: int, settles: bool) -> None:
        if settles:
            self.stream.quiesce()
        state, fields = save(self.buffer)
        counts = {"num_drawn": self.stream.num_drawn, "num_dropped": 0, "prefetch_s": 0.0}
        self.stream.__exit__()
        self.holds = []
        self.buffer = self.new_buffer()
        load(self.buffer, state, fields)
        self.begin(num)
        self.stream.load_state_dict(counts)

    @invariant()
    def each_was_trained_once_and_in_order(self) -> None:
        assert self.trained == list(range(len(self.trained)))
        assert self.stream.num_drawn + self.buffer.num_never_drawn == self.num_put


TestPrefetchMachine = PrefetchMachine.TestCase
TestPrefetchMachine.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


class RefillingAtOnce(StreamServer):
    """Returns one array for all batches."""

    def prepare_training_attributes(self) -> None:
        self.work, self.fixed = np.empty((2, 4), np.float32), np.ones(3, np.float32)

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.work[:] = batch.fields["u"].reshape(2, 4)
        return {"work": self.work, "fixed": self.fixed, "given": batch.fields["u"]}


def test_an_array_that_process_batch_fills_anew_changes_no_batch_that_is_ahead() -> None:
    with prefetching(buffer_of(8), RefillingAtOnce(), num=2) as stream:
        for _ in range(3):
            batch = drawn(stream)
            stream.quiesce()
            assert batch.data["work"].tolist() == batch.data["given"].reshape(2, 4).tolist()
            assert batch.data["fixed"].tolist() == [1, 1, 1]
