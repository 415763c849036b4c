"""Batches that a loader of the user's makes beside the step: which they are does not depend on how far it is."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from stream_server.errors import Closed, UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.loader_stream import LoaderStream
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationData
from tests.server.training.test_train_dataloader import (
    Kept,
    Loading,
    Make,
    Mixed,
    Nothing,
    Shuffled,
    closed,
    earlier,
    empty_buffer,
    loading,
    next_of,
    of_some,
    plain,
    put,
    steps_of,
    stream_of,
)
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

LONG_S = 60.0

MAKES: dict[str, Make] = {
    "plain": plain,
    "smaller": lambda it: DataLoader(it, batch_size=3),
    "filtered": lambda it: DataLoader(Kept(it, lambda step: step % 3 != 0), batch_size=4),
    "mostly dropped": lambda it: DataLoader(Kept(it, lambda step: step % 9 == 8), batch_size=2),
    "mixed": lambda it: DataLoader(Mixed(it, earlier(99)), batch_size=4),
    "shuffled": lambda it: DataLoader(Shuffled(it), batch_size=4),
    "without the rest": lambda it: DataLoader(it, batch_size=4, drop_last=True),
}


def told(batch: Batch) -> tuple[list[int], int, int, int, int]:
    return steps_of(batch), batch.size, batch.num_first, batch.num_added, batch.num_dropped


class Watched(Loading):
    """Says when it processes a time step, and waits there for leave."""

    def prepare_training_attributes(self) -> Any:
        self.begun = {step: threading.Event() for step in range(64)}
        self.leave = {step: threading.Event() for step in range(64)}

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        self.begun[data.time_step].set()
        assert self.leave[data.time_step].wait(LONG_S)
        return super().process_simulation_data(data, config)


def watched(free: range) -> Watched:
    server = Watched()
    server.prepare_training_attributes()
    server.make = plain
    for step in free:
        server.leave[step].set()
    return server


@pytest.mark.parametrize("name", list(MAKES))
@pytest.mark.parametrize("num_ahead", [1, 3])
def test_the_batches_and_what_is_told_of_them_are_those_of_a_loader_that_is_not_ahead(
    name: str, num_ahead: int
) -> None:
    made: list[Any] = []
    for prefetch in (0, num_ahead):
        buffer = closed(30)
        with loading(buffer, MAKES[name], prefetch=prefetch) as stream:
            batches = [told(batch) for batch in stream if batch is not None]
            made.append((batches, stream.num_drawn, stream.num_dropped))
            assert buffer.slots.num_free == 64
    assert made[0] == made[1]


def test_the_next_batches_are_made_while_one_is_trained_and_not_more() -> None:
    server, buffer = watched(range(4)), closed(20)
    with stream_of(server, buffer, 4, prefetch=2) as stream:
        first = stream.draw(0)
        assert first is not None
        # Nobody draws, and the loader is at the next batch: it waits for leave there, and for samples after two.
        assert server.begun[4].wait(LONG_S)
        for step in range(4, 12):
            server.leave[step].set()
        stream.quiesce()
        assert server.begun[11].is_set()
        assert not server.begun[12].is_set()
        for step in range(12, 20):
            server.leave[step].set()
        assert [steps_of(batch) for batch in stream if batch] == [[*range(it, it + 4)] for it in range(4, 20, 4)]
        assert stream.prefetch_s > 0


@pytest.mark.parametrize("is_far", [False, True])
def test_what_is_drawn_does_not_depend_on_how_far_the_loader_is(is_far: bool) -> None:
    server, buffer = watched(range(40) if is_far else range(4)), put(empty_buffer(), range(32))
    with stream_of(server, buffer, 4, prefetch=2) as stream:
        assert stream.draw(0) is not None
        if is_far:
            stream.quiesce()
        assert stream.num_drawn == 12
        for step in range(64):
            server.leave[step].set()
        assert stream.draw(0) is not None
        assert stream.num_drawn == 16


def test_what_is_ahead_is_saved_as_drawn_and_restored_on_a_stream_that_is_not_ahead() -> None:
    buffer = put(empty_buffer(), range(24))
    with loading(buffer, MAKES["filtered"], prefetch=2) as stream:
        first = stream.draw(0)
        assert first is not None
        stream.quiesce()
        counts = {"num_drawn": stream.num_drawn, "num_dropped": stream.num_dropped, "prefetch_s": 0.0}
        state, fields = save(buffer)
    assert counts == {"num_drawn": 16, "num_dropped": 2, "prefetch_s": 0.0}
    other = empty_buffer()
    load(other, state, fields)
    other.close()
    with loading(other, plain) as stream:
        stream.load_state_dict(counts)
        # The first batch was not trained, and is given again.
        rest = [step for batch in stream if batch for step in steps_of(batch)]
        assert rest == [step for step in range(24) if step not in (0, 3)]
        assert stream.num_drawn == 24


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_wherever_a_study_is_killed_each_sample_is_trained_or_dropped_once(data: st.DataObject) -> None:
    """With a loader that keeps, drops and holds back as it likes, before and after a restart with another prefetch."""
    choices = data.draw(st.lists(st.sampled_from(["keep", "drop", "hold"]), min_size=30, max_size=30))
    num_before, num_ahead = data.draw(st.integers(0, 5)), st.integers(0, 3)

    def batches_of(dataset: Any) -> Any:
        held: list[Any] = []
        for sample in dataset:
            choice = choices[int(sample[0])]
            if choice == "hold" and len(held) < 2:
                held.append(sample)
            elif choice != "drop":
                yield sample
        yield from held

    class Choosing(torch.utils.data.IterableDataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Any:
            return batches_of(self.dataset)

    def make(dataset: Any) -> Any:
        return DataLoader(Choosing(dataset), batch_size=3)

    buffer, trained, counts = put(empty_buffer(), range(30)), [], {"num_drawn": 0, "num_dropped": 0, "prefetch_s": 0.0}
    with loading(buffer, make, batch_size=5, prefetch=data.draw(num_ahead)) as stream:
        for _ in range(num_before):
            batch = stream.draw(0)
            trained += [] if batch is None else batch.keys[1].tolist()
        stream.release()
        stream.quiesce()
        counts = {"num_drawn": stream.num_drawn, "num_dropped": stream.num_dropped, "prefetch_s": 0.0}
        state, fields = save(buffer)
    other = empty_buffer()
    load(other, state, fields)
    other.close()
    with loading(other, make, batch_size=5, prefetch=data.draw(num_ahead)) as stream:
        stream.load_state_dict(counts)
        trained += [step for batch in iter(lambda: next_of(stream), None) for step in batch.keys[1].tolist()]
        assert sorted(trained) == [step for step in range(30) if choices[step] != "drop"]
        assert (stream.num_drawn, stream.num_dropped) == (30, choices.count("drop"))


@pytest.mark.parametrize("num", [4, 6], ids=["a batch", "more than a batch"])
@pytest.mark.parametrize("num_ahead", [1, 2])
def test_all_that_was_made_without_statistics_is_made_again(num: int, num_ahead: int) -> None:
    server = Nothing()
    server.make = lambda it: DataLoader(it, batch_size=num, collate_fn=of_some)
    server.normalization = Normalization(SoloRanks(), {"u": ()}, freeze_after=1)
    buffer = closed(24)
    with stream_of(server, buffer, 4, prefetch=num_ahead) as stream:
        first = stream.draw(0)
        assert first is not None
        server.normalization.sync()
        again = stream.form_again()
        batches = [again, *(batch for batch in stream if batch is not None)]
        odd = list(range(1, 24, 2))
        assert steps_of(first) == steps_of(again)
        assert [step for batch in batches for step in steps_of(batch)] == odd
        normalized = server.normalization.normalize("u", np.array(odd, float))
        assert torch.cat([batch.data[1] for batch in batches])[:, 0].numpy() == pytest.approx(normalized, rel=1e-5)
        assert sum(batch.num_first + batch.num_first_dropped for batch in [first, *batches[1:]]) == 24
        assert (stream.num_drawn, stream.num_dropped) == (24, 12)
        assert buffer.slots.num_free == 64


def test_statistics_change_only_while_the_loader_rests() -> None:
    server, buffer = watched(range(4)), put(empty_buffer(), range(16))
    server.normalization = Normalization(SoloRanks(), {"u": ()})
    with stream_of(server, buffer, 4, prefetch=1) as stream:
        assert stream.draw(0) is not None
        assert server.begun[4].wait(LONG_S)
        syncing = threading.Thread(target=server.normalization.sync)
        syncing.start()
        assert server.normalization.num_samples == 0
        for step in range(4, 8):
            server.leave[step].set()
        syncing.join(LONG_S)
        assert server.normalization.num_samples == 8
        assert server.begun[7].is_set()


def test_what_the_user_raises_ahead_is_raised_where_its_batch_would_have_been(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Raising(Loading):
        def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
            if data.time_step == 9:
                raise KeyError("temperature")
            return super().process_simulation_data(data, config)

    with loading(closed(16), plain, server=Raising, prefetch=3) as stream:
        for first in (0, 4):
            batch = stream.draw(0)
            assert batch is not None
            assert steps_of(batch) == [*range(first, first + 4)]
            stream.quiesce()
        with pytest.raises(UserCodeError, match=r"^Raising.process_simulation_data raised KeyError: 'temperature'"):
            stream.draw(0)


def test_samples_that_come_between_two_draws_are_taken_ahead() -> None:
    buffer = put(empty_buffer(), range(4))
    with loading(buffer, plain, prefetch=2) as stream:
        assert stream.draw(0) is not None
        assert stream.draw(0) is None
        put(buffer, range(4, 6))
        assert stream.draw(0) is None
        put(buffer, range(6, 14))
        batch = stream.draw(0)
        assert batch is not None
        assert steps_of(batch) == [4, 5, 6, 7]
        buffer.close()
        assert [steps_of(batch) for batch in stream if batch] == [[8, 9, 10, 11], [12, 13]]
        with pytest.raises(Closed):
            stream.draw(0)


def test_a_loader_that_makes_batches_without_the_stream_is_not_further_ahead_than_it_may() -> None:
    """Files first, and only then the stream: nothing but the number of batches holds it."""

    class Files(torch.utils.data.IterableDataset[Any]):
        def __init__(self) -> None:
            self.num = 0

        def __iter__(self) -> Any:
            for sample in earlier(40):
                self.num += 1
                yield sample

    files = Files()
    chain = torch.utils.data.ChainDataset
    with loading(closed(8), lambda it: DataLoader(chain([files, it]), batch_size=4), prefetch=2) as stream:
        assert stream.draw(0) is not None
        stream.quiesce()
        assert files.num == 12
        batches = [batch for batch in stream if batch]
        assert sum(batch.num_first for batch in batches) == 8


def test_arrays_that_a_collate_fn_fills_anew_change_no_batch_that_is_ahead() -> None:
    steps, fields = torch.zeros(4), np.zeros((4, 2), np.float32)

    def collate(samples: list[Any]) -> Any:
        for row, (step, field) in enumerate(samples):
            steps[row], fields[row] = float(step), field
        return steps, fields

    with loading(closed(12), lambda it: DataLoader(it, batch_size=4, collate_fn=collate), prefetch=2) as stream:
        for first in range(0, 12, 4):
            batch = stream.draw(0)
            assert batch is not None
            stream.quiesce()
            assert steps_of(batch) == batch.data[1][:, 0].tolist() == [*range(first, first + 4)]


def test_a_loader_that_holds_too_much_is_told_what_it_may_hold() -> None:
    with (
        loading(closed(32), lambda it: DataLoader(it, batch_size=20), prefetch=1) as stream,
        pytest.raises(UserCodeError, match=r"holds 12 samples and asks .* training.batch_size, 4, with .*prefetch 1"),
    ):
        stream.draw(0)


def test_a_stream_is_left_while_its_loader_works() -> None:
    server = watched(range(4))
    with stream_of(server, closed(20), 4, prefetch=2) as stream:
        assert isinstance(stream, LoaderStream)
        assert stream.draw(0) is not None
        assert server.begun[4].wait(LONG_S)
        for step in range(4, 20):
            server.leave[step].set()
    assert "loader" not in {thread.name for thread in threading.enumerate()}
