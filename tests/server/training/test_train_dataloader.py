"""Loaders of the user's over the stream: what they drop, repeat, add and hold back is told apart, and is never lost."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

from stream_server import StreamDataset, StreamServer, TorchServer
from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.slots import Slots
from stream_server.errors import Closed, ProducerFailed, UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.loader_samples import HandedSamples, LoaderSamples
from stream_server.server.training.loader_stream import LoaderStream
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.torch.framework import TorchCollate
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationData
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

Make = Callable[[StreamDataset], Any]


class Loading(TorchServer):
    """Its samples are a time step and a field, and its loader is made by `make`."""

    make: Make

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return np.float32(data.time_step), data.fields["u"]

    def train_dataloader(self) -> Any:
        return self.make(self.train_dataset)


def empty_buffer(num_slots: int = 64) -> Buffer:
    slots = Slots({"u": (2,)}, num_slots=num_slots)
    slots.allocate({"u": np.float64})
    return Buffer(Fifo(capacity=32), slots)


def put(buffer: Buffer, steps: range) -> Buffer:
    slots = buffer.slots
    for step in steps:
        (slot,) = buffer.claim(1)
        slots.simulation_ids[slot], slots.time_steps[slot], slots.arrays["u"][slot] = 7, step, step
        buffer.enqueue([slot])
    buffer.admit()
    return buffer


def closed(num: int) -> Buffer:
    buffer = put(empty_buffer(), range(num))
    buffer.close()
    return buffer


@contextmanager
def loading(
    buffer: Buffer, make: Make, *, batch_size: int = 4, server: type[Loading] = Loading, prefetch: int = 0
) -> Iterator[LoaderStream]:
    loaded = server()
    loaded.make = make
    with stream_of(loaded, buffer, batch_size, prefetch) as stream:
        yield stream


@contextmanager
def stream_of(server: TorchServer, buffer: Buffer, batch_size: int, prefetch: int = 0) -> Iterator[LoaderStream]:
    samples = LoaderSamples()
    loader = server.make_loader(samples)
    with LoaderStream(
        buffer,
        server,
        loader,
        samples,
        parameters_of=lambda simulation: np.array([simulation, 0.5]),
        batch_size=batch_size,
        phases=Phases(),
        prefetch=prefetch,
    ) as stream:
        yield stream


def steps_of(batch: Batch) -> list[int]:
    """The time steps in the data, whoever gave them."""
    steps: list[int] = [int(step) for step in batch.data[0]]
    return steps


def all_of(stream: LoaderStream) -> list[Batch]:
    return [batch for batch in stream if batch is not None]


def plain(dataset: StreamDataset) -> Any:
    return DataLoader(dataset, batch_size=4)


class Kept(IterableDataset[Any]):
    """The samples of another dataset that are wanted."""

    def __init__(self, dataset: Any, wanted: Callable[[int], bool]) -> None:
        self.dataset = dataset
        self.wanted = wanted

    def __iter__(self) -> Iterator[Any]:
        for sample in self.dataset:
            if self.wanted(int(sample[0])):
                yield sample


class Mixed(IterableDataset[Any]):
    """A sample of the stream and one of an earlier study in turn."""

    def __init__(self, dataset: Any, files: Any) -> None:
        self.dataset = dataset
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        for ours, theirs in zip(self.dataset, self.files, strict=False):
            yield ours
            yield theirs


def earlier(num: int) -> list[Any]:
    return [(np.float32(-1 - step), np.zeros(2)) for step in range(num)]


def test_a_dataset_is_one_of_torch_and_gives_what_the_class_makes_of_each_sample() -> None:
    with loading(closed(6), plain) as stream:
        assert isinstance(stream._server.train_dataset, IterableDataset)
        batches = all_of(stream)
    assert [steps_of(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch.data[1].dtype for batch in batches] == [torch.float32, torch.float32]
    assert batches[0].keys.tolist() == [[7] * 4, [0, 1, 2, 3]]
    assert [(batch.size, batch.num_first, batch.num_added, batch.num_dropped) for batch in batches] == [
        (4, 4, 0, 0),
        (2, 2, 0, 0),
    ]
    assert (stream.num_drawn, stream.num_dropped) == (6, 0)


class Copying(Loading):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return float(data.time_step), data.fields["u"].copy()


class Refilling(Loading):
    values = torch.zeros(2)

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.values[:] = data.time_step
        return float(data.time_step), self.values


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_array_that_is_filled_anew_for_each_sample_is_refused(prefetch: int) -> None:
    with (
        loading(closed(6), plain, server=Refilling, prefetch=prefetch) as stream,
        pytest.raises(UserCodeError, match="fills an array anew that it has returned"),
    ):
        all_of(stream)


class Writing(Loading):
    """Its samples have a place for what a dataset makes of the field."""

    grid = np.arange(3.0)

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return [np.float32(data.time_step), data.fields["u"], self.grid]


class Derived(IterableDataset[Any]):
    """Puts the square of the field into each sample, in a new array or always in the same one."""

    def __init__(self, dataset: Any, *, refills: bool) -> None:
        self.dataset = dataset
        self.square = np.zeros(2)
        self.refills = refills

    def __iter__(self) -> Iterator[Any]:
        for sample in self.dataset:
            if not self.refills:
                self.square = np.zeros(2)
            np.square(sample[1], out=self.square)
            sample[1] = self.square[:]
            yield sample


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_array_that_a_dataset_fills_anew_for_each_sample_is_refused(prefetch: int) -> None:
    def refilling(dataset: Any) -> Any:
        return DataLoader(Derived(dataset, refills=True), batch_size=3)

    with (
        loading(closed(9), refilling, server=Writing, prefetch=prefetch) as stream,
        pytest.raises(UserCodeError, match="hold one array, which is filled anew"),
    ):
        all_of(stream)


def test_a_dataset_that_shuffles_before_it_refills_one_array_is_refused() -> None:
    def shuffling(dataset: Any) -> Any:
        return DataLoader(Derived(Shuffled(dataset), refills=True), batch_size=3)

    with (
        loading(closed(9), shuffling, server=Writing) as stream,
        pytest.raises(UserCodeError, match="hold one array, which is filled anew"),
    ):
        all_of(stream)


class Placed(IterableDataset[Any]):
    """Puts as many rows of one table into each sample as it has."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.table = dataset, np.arange(10.0)

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.dataset):
            sample[1] = self.table[: 2 + number // 3]
            yield sample


def test_samples_may_share_a_table_of_which_each_has_as_much_as_it_needs() -> None:
    with loading(closed(9), lambda it: DataLoader(Placed(it), batch_size=3), server=Writing) as stream:
        batches = all_of(stream)
    assert [batch.data[1].shape for batch in batches] == [(3, 2), (3, 3), (3, 4)]


def test_samples_may_share_an_array_that_stays_as_it_is() -> None:
    with loading(closed(9), lambda it: DataLoader(Derived(it, refills=False), batch_size=3), server=Writing) as stream:
        batches = all_of(stream)
    assert [batch.data[1][:, 0].tolist() for batch in batches] == [[0, 1, 4], [9, 16, 25], [36, 49, 64]]


class Scaled(IterableDataset[Any]):
    """Writes into the samples of another dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        for sample in self.dataset:
            sample[1][:] *= 2
            yield sample


def test_a_dataset_may_write_into_the_samples_that_it_is_given() -> None:
    with loading(closed(6), lambda it: DataLoader(Scaled(it), batch_size=3), server=Copying) as stream:
        batches = all_of(stream)
    assert [batch.data[1][:, 0].tolist() for batch in batches] == [[0, 2, 4], [6, 8, 10]]


def test_a_loader_that_never_asks_the_stream_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with loading(closed(6), lambda _: DataLoader(earlier(300), batch_size=2)) as stream:  # type: ignore[arg-type]
        for _ in range(120):
            assert stream.draw(0) is not None
    assert caplog.text.count("has made 100 batches and not asked train_dataset, which is the stream") == 1


def test_tensors_whose_numbers_are_too_large_for_the_precision_are_told_from_infinite_ones() -> None:
    collate = TorchCollate()
    assert collate([torch.tensor([1e39], dtype=torch.float64)]).isinf().all()
    with np.errstate(over="raise"):
        assert collate([torch.tensor([np.inf, 3e38], dtype=torch.float64)]).tolist() == [[np.inf, np.float32(3e38)]]
        with pytest.raises(FloatingPointError):
            collate([torch.tensor([np.inf, 1e39], dtype=torch.float64)])


class Raw(Loading):
    process_simulation_data = StreamServer.process_simulation_data

    def prepare_training_attributes(self) -> Any:
        self.kept: list[SimulationData] = []


def test_without_a_transformation_it_gives_the_samples_themselves_with_arrays_that_stay() -> None:
    kept: list[SimulationData] = []

    def collate(samples: list[SimulationData]) -> Any:
        kept.extend(samples)
        return torch.tensor([sample.time_step for sample in samples]), torch.zeros(len(samples))

    buffer = put(empty_buffer(num_slots=32), range(8))
    with loading(buffer, lambda it: DataLoader(it, batch_size=4, collate_fn=collate), server=Raw) as stream:
        for start in (8, 16, 24):
            stream.draw(0)
            stream.draw(0)
            stream.release()
            put(buffer, range(start, start + 8))
    assert [sample.time_step for sample in kept] == list(range(24))
    assert [sample.fields["u"].tolist() for sample in kept] == [[step, step] for step in range(24)]
    assert kept[3].parameters.tolist() == [7, 0.5]


def test_what_a_filter_drops_is_counted_and_its_slots_are_free() -> None:
    buffer = closed(12)
    with loading(buffer, lambda it: DataLoader(Kept(it, lambda step: step % 3 != 0), batch_size=4)) as stream:
        batches = all_of(stream)
        assert [steps_of(batch) for batch in batches] == [[1, 2, 4, 5], [7, 8, 10, 11]]
        # The loop of the filter still had the last sample when the batch was made.
        assert sum(batch.num_dropped for batch in batches) == sum(batch.num_first_dropped for batch in batches) == 4
        assert (stream.num_drawn, stream.num_dropped) == (12, 4)
        stream.release()
        assert buffer.slots.num_free == 64


def test_what_is_none_was_dropped() -> None:
    class Choosy(Loading):
        def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
            return super().process_simulation_data(data, config) if data.time_step % 2 else None

    def collate(samples: list[Any]) -> Any:
        return torch.utils.data.default_collate([it for it in samples if it is not None])

    with loading(closed(8), lambda it: DataLoader(it, batch_size=4, collate_fn=collate), server=Choosy) as stream:
        batches = all_of(stream)
    assert [(steps_of(batch), batch.size, batch.num_dropped) for batch in batches] == [([1, 3], 2, 2), ([5, 7], 2, 2)]
    assert stream.num_dropped == 4


def test_none_that_a_filter_leaves_out_was_dropped_at_once() -> None:
    """As None is one object, nobody can tell from its references which of them are still to come."""

    class Choosy(Loading):
        def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
            return super().process_simulation_data(data, config) if data.time_step >= 10 else None

    class NotNone(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            return (sample for sample in self.dataset if sample is not None)

    buffer = closed(16)
    with loading(buffer, lambda it: DataLoader(NotNone(it), batch_size=3), server=Choosy) as stream:
        batches = all_of(stream)
        assert [(steps_of(batch), batch.num_dropped) for batch in batches] == [([10, 11, 12], 10), ([13, 14, 15], 0)]
        assert (stream.num_drawn, stream.num_dropped) == (16, 10)
        stream.release()
        assert buffer.slots.num_free == 64


def test_the_rest_that_a_loader_drops_is_counted() -> None:
    buffer = closed(10)
    with loading(buffer, lambda it: DataLoader(it, batch_size=4, drop_last=True)) as stream:
        assert [steps_of(batch) for batch in all_of(stream)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert (stream.num_drawn, stream.num_dropped) == (10, 2)
        assert buffer.slots.num_free == 64


def test_samples_of_an_earlier_study_are_counted_as_added() -> None:
    with loading(closed(6), lambda it: DataLoader(Mixed(it, earlier(99)), batch_size=4)) as stream:
        batches = all_of(stream)
    assert [steps_of(batch) for batch in batches] == [[0, -1, 1, -2], [2, -3, 3, -4], [4, -5, 5, -6]]
    assert [(batch.size, batch.num_first, batch.num_added) for batch in batches] == [(4, 2, 2)] * 3
    assert batches[0].keys.tolist() == [[7, 7], [0, 1]]


def test_a_chain_goes_on_with_files_when_the_stream_has_ended() -> None:
    class Files(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(earlier(5))

    with loading(closed(5), lambda it: DataLoader(ChainDataset([it, Files()]), batch_size=4)) as stream:
        batches = all_of(stream)
    assert [batch.num_added for batch in batches] == [0, 3, 2]
    assert sum(batch.num_first for batch in batches) == 5


def test_a_sample_that_is_repeated_is_added_the_second_time() -> None:
    class Twice(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            for sample in self.dataset:
                yield sample
                yield sample

    with loading(closed(6), lambda it: DataLoader(Twice(it), batch_size=3)) as stream:
        batches = all_of(stream)
    assert [steps_of(batch) for batch in batches] == [[0, 0, 1], [1, 2, 2], [3, 3, 4], [4, 5, 5]]
    assert [(batch.num_first, batch.num_added) for batch in batches] == [(2, 1), (1, 2), (2, 1), (1, 2)]


class Shuffled(IterableDataset[Any]):
    """A buffer of three samples, of which the oldest but one goes next."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for sample in self.dataset:
            held.append(sample)
            del sample
            if len(held) > 2:
                yield held.pop(1)
        yield from held


def test_what_a_loader_holds_back_is_not_dropped_and_is_restored() -> None:
    buffer = put(empty_buffer(), range(12))
    with loading(buffer, lambda it: DataLoader(Shuffled(it), batch_size=4)) as stream:
        first = stream.draw(0)
        assert first is not None
        assert steps_of(first) == [1, 2, 3, 4]
        stream.release()
        assert stream.num_dropped == 0
        counts = {"num_drawn": stream.num_drawn, "num_dropped": 0, "prefetch_s": 0.0}
        state, fields = save(buffer)
    other = empty_buffer()
    load(other, state, fields)
    other.close()
    with loading(other, plain) as stream:
        stream.load_state_dict(counts)
        rest = [step for batch in all_of(stream) for step in steps_of(batch)]
        assert rest == [0, *range(5, 12)]
        assert (stream.num_drawn, stream.num_dropped) == (12, 0)


def test_while_samples_are_missing_the_training_does_other_things() -> None:
    buffer = put(empty_buffer(), range(3))
    with loading(buffer, plain) as stream:
        assert stream.draw(0) is None
        assert stream.draw(0) is None
        put(buffer, range(3, 5))
        batch = stream.draw(0)
        assert batch is not None
        assert steps_of(batch) == [0, 1, 2, 3]
        assert stream.draw(0) is None
        buffer.close()
        assert [steps_of(batch) for batch in all_of(stream)] == [[4]]
        with pytest.raises(Closed):
            stream.draw(0)


def test_a_failed_receiver_fails_the_draw() -> None:
    buffer = put(empty_buffer(), range(3))
    with loading(buffer, plain) as stream:
        assert stream.draw(0) is None
        buffer.close(OSError("the network is gone"))
        with pytest.raises(ProducerFailed):
            stream.draw(0)


def test_a_loader_that_ends_before_the_stream_is_an_error() -> None:
    with (
        loading(closed(20), lambda it: DataLoader(Mixed(it, earlier(4)), batch_size=4)) as stream,
        pytest.raises(UserCodeError, match=r"train_dataloader ended after 2 batches, but the stream has not"),
    ):
        all_of(stream)


def test_a_loader_that_makes_new_objects_is_told_so_at_once() -> None:
    class Doubled(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            return ((step, 2 * u) for step, u in self.dataset)

    with (
        loading(closed(20), lambda it: DataLoader(Doubled(it), batch_size=4)) as stream,
        pytest.raises(UserCodeError, match=r"no sample of the first batch .* pass on the objects"),
    ):
        all_of(stream)


def test_a_loader_may_hold_as_many_samples_as_a_batch_has() -> None:
    with (
        loading(closed(20), lambda it: DataLoader(it, batch_size=10)) as stream,
        pytest.raises(UserCodeError, match=r"holds 8 samples and asks for more, but .* training.batch_size, 4"),
    ):
        all_of(stream)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda it: it, "must return a torch.utils.data.DataLoader, or None, but returned a StreamDataset"),
        (lambda it: DataLoader(it, batch_size=4, num_workers=2), "must use num_workers=0, but has 2"),
        (lambda it: DataLoader(it, batch_size=None), "that makes batches, but its batch_size is None"),
    ],
    ids=["no loader", "workers", "no batches"],
)
def test_what_cannot_have_the_stream_is_refused(make: Make, said: str) -> None:
    with pytest.raises(UserCodeError, match=f"^Loading.train_dataloader .*{said}"), loading(closed(4), make):
        pass


def test_a_dataset_cannot_go_to_another_process() -> None:
    dataset = StreamDataset(iter([]))
    with pytest.raises(TypeError, match="num_workers=0"):
        pickle.dumps(dataset)
    # An inner loader of the user's, whose workers are forked.
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork"))


def test_nobody_else_may_iterate_it() -> None:
    with (
        loading(closed(4), plain) as stream,
        pytest.raises(RuntimeError, match="for the loader that train_dataloader returns"),
    ):
        next(iter(stream._server.train_dataset))


@pytest.mark.parametrize("where", ["sample", "collate"])
def test_what_the_user_raises_in_the_third_batch_ends_it_there(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sample that fails is written into the study's folder.
    monkeypatch.chdir(tmp_path)

    class Raising(Loading):
        def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
            if where == "sample" and data.time_step == 9:
                raise KeyError("temperature")
            return super().process_simulation_data(data, config)

    def collate(samples: list[Any]) -> Any:
        if where == "collate" and int(samples[0][0]) == 8:
            raise KeyError("temperature")
        return torch.utils.data.default_collate(samples)

    with (
        loading(closed(12), lambda it: DataLoader(it, batch_size=4, collate_fn=collate), server=Raising) as stream,
        ExitStack() as stack,
    ):
        assert [steps_of(batch) for batch in itertools.islice(stream, 2) if batch] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        name = "Raising.process_simulation_data" if where == "sample" else "the loader of Raising.train_dataloader"
        stack.enter_context(pytest.raises(UserCodeError, match=f"^{name} raised KeyError: 'temperature'"))
        stream.draw(0)


def test_a_loader_that_swallows_all_exceptions_ends_with_the_stream() -> None:
    class Stubborn(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            for _ in range(3):
                try:
                    yield from self.dataset
                except BaseException:
                    continue

    with loading(put(empty_buffer(), range(3)), lambda it: DataLoader(Stubborn(it), batch_size=4)) as stream:
        assert stream.draw(0) is None


def test_the_first_batch_is_formed_again_once_there_are_statistics() -> None:
    class Normalizing(Loading):
        def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
            return np.float32(data.time_step), self.normalization.normalize("u", data.fields["u"])

    server = Normalizing()
    server.make = plain
    server.normalization = Normalization(SoloRanks(), {"u": ()})
    buffer = closed(8)
    with stream_of(server, buffer, 4) as stream:
        assert stream.draw(0) is not None
        server.normalization.sync()
        again = stream.form_again()
        u = np.arange(4)
        assert again.data[1].numpy() == pytest.approx(np.stack([(u - u.mean()) / u.std()] * 2, axis=1), rel=1e-6)
        assert [steps_of(batch) for batch in all_of(stream)] == [[4, 5, 6, 7]]
        assert (stream.num_drawn, stream.num_dropped) == (8, 0)
        assert buffer.slots.num_free == 64


class Nothing(Loading):
    """Normalises, and makes nothing of each second sample."""

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        if data.time_step % 2 == 0:
            return None
        return np.float32(data.time_step), self.normalization.normalize("u", data.fields["u"])


def of_some(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate([it for it in samples if it is not None])


@pytest.mark.parametrize("num", [4, 6], ids=["a batch", "more than a batch"])
def test_the_first_batch_is_formed_again_without_what_was_none(num: int) -> None:
    server = Nothing()
    server.make = lambda it: DataLoader(it, batch_size=num, collate_fn=of_some)
    server.normalization = Normalization(SoloRanks(), {"u": ()})
    buffer = closed(12)
    with stream_of(server, buffer, 4) as stream:
        first = stream.draw(0)
        assert first is not None
        server.normalization.sync()
        again = stream.form_again()
        odd = [1, 3, 5, 7, 9, 11]
        assert steps_of(first) == steps_of(again) == odd[: num // 2]
        rest = all_of(stream)
        assert [step for batch in rest for step in steps_of(batch)] == odd[num // 2 :]
        # Of the batch that was formed again the ranks know what it had at first.
        assert sum(batch.num_first + batch.num_first_dropped for batch in [first, *rest]) == 12
        assert (stream.num_drawn, stream.num_dropped) == (12, 6)
        assert buffer.slots.num_free == 64


def test_a_loader_that_begins_in_another_way_is_told_what_differs() -> None:
    server = Nothing()
    beginnings = [0, 1]

    class Mixing(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            yield from earlier(beginnings.pop())
            yield from self.dataset

    # As many of the stream in each, with one of another study in the first.
    server.make = lambda it: DataLoader(Mixing(it), batch_size=4, collate_fn=of_some)
    server.normalization = Normalization(SoloRanks(), {"u": ()})
    with stream_of(server, closed(12), 4) as stream:
        assert stream.draw(0) is not None
        server.normalization.sync()
        with pytest.raises(
            UserCodeError,
            match=r"must begin in the same way .* has 2 samples, 2 of the stream, 2 of them for the first time, "
            r"instead of 2 samples, 1 of the stream, 1 of them for the first time,",
        ):
            stream.form_again()


@pytest.mark.parametrize(("num_calls", "said"), [(0, "called it 0 times"), (2, "called it 2 times")])
def test_a_loader_that_does_not_make_each_batch_by_one_call_of_collate_fn_is_refused(num_calls: int, said: str) -> None:
    class Other(DataLoader[Any]):
        def __iter__(self) -> Any:
            if num_calls == 0:
                return iter([torch.zeros(4)] * 9)
            batches = super().__iter__()
            # One ahead.
            return (made for made, _ in itertools.pairwise(batches))

    with (
        loading(closed(20), lambda it: Other(it, batch_size=4)) as stream,
        pytest.raises(UserCodeError, match=f"train_dataloader must call its collate_fn once for each batch.*{said}"),
    ):
        all_of(stream)


def test_a_loader_takes_nothing_from_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with loading(closed(8), plain) as stream:
        all_of(stream)
    assert torch.equal(torch.get_rng_state(), before)


class Sparse(TorchServer):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return torch.from_numpy(data.fields["u"].copy()).to_sparse()


def test_samples_may_be_sparse_tensors() -> None:
    stream = BatchStream(closed(3), Sparse(), parameters_of=lambda _: np.zeros(2), batch_size=3, phases=Phases())
    (batch,) = [batch for batch in stream if batch is not None]
    assert batch.data.to_dense().tolist() == [[step, step] for step in range(3)]


def test_batches_of_a_plain_loader_are_those_of_the_stream_itself() -> None:
    class Plain(Loading):
        def train_dataloader(self) -> Any:
            return None

    assert Plain().make_loader(LoaderSamples()) is None
    stream = BatchStream(
        closed(10), Plain(), parameters_of=lambda simulation: np.zeros(2), batch_size=4, phases=Phases()
    )
    without = [batch for batch in stream if batch is not None]
    # The last samples are shared out evenly there.
    assert [steps_of(batch) for batch in without] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with loading(closed(10), plain) as loader:
        batches = all_of(loader)
    for ours, theirs in ((without, batches), (batches, without)):
        torch.testing.assert_close(
            torch.cat([batch.data[1] for batch in ours]), torch.cat([batch.data[1] for batch in theirs])
        )


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_each_sample_is_in_a_batch_dropped_held_back_or_added(data: st.DataObject) -> None:
    """Whatever a loader does, and wherever the server is killed: what was drawn adds up."""
    choices = data.draw(st.lists(st.sampled_from(["keep", "drop", "hold", "add", "twice"]), min_size=24, max_size=24))
    num_first, ends = data.draw(st.integers(0, 5)), data.draw(st.booleans())

    class Doing(IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            held: list[Any] = []
            for sample in self.dataset:
                choice = choices[int(sample[0])]
                if choice == "hold" and len(held) < 2:
                    held.append(sample)
                    continue
                if choice == "drop":
                    continue
                yield sample
                if choice == "twice":
                    yield sample
                if choice == "add":
                    yield np.float32(-1), np.zeros(2)
            yield from held

    def make(dataset: StreamDataset) -> Any:
        return DataLoader(Doing(dataset), batch_size=3)

    buffer = put(empty_buffer(), range(24))
    trained: list[int] = []
    num_dropped = 0
    # The loader holds five at most: two of a batch, two held back, and the last one in its loop.
    with loading(buffer, make, batch_size=5) as stream:
        for _ in range(num_first):
            batch = stream.draw(0)
            if batch is not None:
                trained += batch.keys[1].tolist()
                num_dropped += batch.num_dropped
                assert batch.size == len(steps_of(batch)) == batch.keys.shape[1] + batch.num_added
        stream.release()
        counts = {"num_drawn": stream.num_drawn, "num_dropped": stream.num_dropped, "prefetch_s": 0.0}
        assert counts["num_dropped"] >= num_dropped
        state, fields = save(buffer)
    other = empty_buffer()
    load(other, state, fields)
    if ends:
        other.close()
    with loading(other, plain) as stream:
        stream.load_state_dict(counts)
        trained += [step for batch in iter(lambda: next_of(stream), None) for step in batch.keys[1].tolist()]
        assert len(trained) == len(set(trained))
        assert {step for step in range(24) if choices[step] != "drop"} - set(trained) <= (
            set() if ends else set(range(24))
        )
        if ends:
            assert len(trained) + stream.num_dropped == stream.num_drawn == 24


def next_of(stream: LoaderStream) -> Batch | None:
    try:
        return stream.draw(0)
    except Closed:
        return None


def test_an_object_that_stands_for_several_samples_is_each_of_them_once() -> None:
    from stream_server.buffers.pins import Draw

    handed, shared = HandedSamples(), object()
    draws = [Draw(np.array([slot], np.intp), 1, slot) for slot in range(3)]
    for draw in draws:
        handed.give(shared, draw)
    assert handed.take([shared, shared]).draws == draws[:2]
    assert handed.dropped() == []
    taken = handed.take([shared, shared])
    assert (list(taken.draws), taken.num_added) == (draws[2:], 1)
    del shared
    assert handed.dropped() == []
    assert handed.all() == []
