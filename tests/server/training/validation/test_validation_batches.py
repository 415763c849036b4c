"""A validation set may be a list of batches, a loader or a dataset; each of its samples counts once."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stream_server.config import StudyConfig
from stream_server.errors import UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run.build import window_shape
from stream_server.server.training.torch.framework import TorchCollate
from stream_server.server.training.validation.validation_batches import HeldOut, HeldOutSamples, choice
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Server, validation
from tests.support.studies import StudyFolder

VALUES = torch.arange(7, dtype=torch.float64)


class Watching(Server):
    """Notes the samples of each batch that this rank evaluates."""

    collate = TorchCollate("64-true")

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.batches: list[list[float]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        (values,) = batch
        self.batches.append(values.tolist())
        return values.mean()


def test_a_dataset_is_batched_by_the_batch_size_of_study_json() -> None:
    server = Watching(TensorDataset(VALUES))
    assert validation(server, batch_size=3).run() == {"loss": 3.0}
    assert server.batches == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]


class Asked(Watching):
    """Counts how often it is asked for its set, which it normalises or not."""

    num_asked = 0
    normalizes = True

    def val_dataloader(self) -> Any:
        self.num_asked += 1
        return [[self.normalization.normalize("u", VALUES) if self.normalizes else VALUES]]


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_set_that_was_normalised_is_asked_for_again_when_the_statistics_have_changed(*, normalizes: bool) -> None:
    server = Asked(None)
    server.normalizes = normalizes
    validating = validation(server)
    means = []
    for value in (0.0, 2.0, None):
        if value is not None:
            server.normalization.observe({"u": np.array([value])}, np.zeros((1, 0)))
            server.normalization.sync()
        means.append(validating.run()["loss"])
    assert server.num_asked == (2 if normalizes else 1)
    assert means == ([3.0, 2.0, 2.0] if normalizes else [3.0, 3.0, 3.0])


def test_a_loader_keeps_its_own_batches() -> None:
    server = Watching(DataLoader(TensorDataset(VALUES), batch_size=5))
    assert validation(server, batch_size=3).run() == {"loss": 3.0}
    assert server.batches == [[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0]]


def test_the_ranks_share_the_batches_of_a_dataset() -> None:
    def run(ranks: Ranks) -> tuple[dict[str, float], list[list[float]]]:
        server = Watching(TensorDataset(VALUES))
        return validation(server, ranks, batch_size=2).run(), server.batches

    (first, of_first), (second, of_second) = on_ranks(2, run)
    assert first == second == {"loss": 3.0}
    assert (of_first, of_second) == ([[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [6.0]])


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_limited_set_is_the_same_samples_on_any_number_of_ranks(num_ranks: int) -> None:
    loader = [(VALUES[:2],), (VALUES[2:5],), (VALUES[5:],)]
    sets = {"dataset": TensorDataset(VALUES), "loader": loader, "whole": TensorDataset(VALUES)}

    def run(ranks: Ranks) -> tuple[dict[str, float], list[list[float]]]:
        server = Watching(sets)
        own = {"loader": {"max_batches": 2}, "whole": {"max_batches": 100}}
        return validation(server, ranks, batch_size=2, max_batches=2, sets=own).run(), server.batches

    # The samples 0, 7/4, 14/4 and 21/4 of the dataset, the first two batches of the loader.
    of_dataset, of_loader, of_whole = [0.0, 1.0, 3.0, 5.0], VALUES[:5].tolist(), VALUES.tolist()
    found = on_ranks(num_ranks, run)
    seen = [value for _, batches in found for batch in batches for value in batch]
    assert sorted(seen) == sorted([*of_dataset, *of_loader, *of_whole])
    means = {f"{name}/loss": np.mean(of) for name, of in zip(sets, (of_dataset, of_loader, of_whole), strict=True)}
    for values, _ in found:
        assert values == pytest.approx({"loss": np.mean([*of_dataset, *of_loader, *of_whole]), **means})


def few(tmp_path: Path, **changes: Any) -> StudyConfig:
    """A study whose simulations have 50 time steps, with these keys of `validation`."""
    of_validation = {f"validation.{name}": value for name, value in changes.pop("validation").items()}
    return StudyFolder(tmp_path / "heat").load({"study.time_steps": 50, **of_validation, **changes})


def all_samples(num_simulations: int, *, complete: set[int] | None = None) -> HeldOut:
    """The samples of held-out simulations of 50 time steps, of those alone that are complete."""
    store = ValidationStore(num_simulations)
    for simulation in range(num_simulations):
        for time_step in range(50):
            store.add(simulation, time_step, {"x": np.zeros(1)}, {"x": True})
    for simulation in range(num_simulations) if complete is None else complete:
        store.complete(simulation)
    found = HeldOutSamples(store=store, parameters_of=lambda it: np.zeros(1))()
    assert found is not None
    return found


def keys(samples: HeldOut | None) -> list[tuple[int, int]]:
    assert samples is not None
    return list(zip(samples.simulation_ids.tolist(), samples.first_steps.tolist(), strict=True))


@pytest.mark.parametrize(("num_simulations", "num_batches"), [(1, 1), (1, 4), (3, 4), (7, 1), (30, 1), (4, 10**6)])
def test_the_limit_takes_held_out_samples_at_equal_distances(
    tmp_path: Path, num_simulations: int, num_batches: int
) -> None:
    limits = {"simulations": num_simulations, "max_batches": num_batches, "batch_size": 10}
    found = keys(choice(few(tmp_path, validation=limits))(all_samples(num_simulations)))
    total, num = num_simulations * 50, min(num_batches * 10, num_simulations * 50)
    places = [-(-number * total // num) - 1 for number in range(1, num + 1)]
    # Each simulation is counted from another time step on.
    starts = [int(simulation * (5**0.5 - 1) / 2 % 1 * 50) for simulation in range(num_simulations)]
    assert found == sorted((place // 50, (place - starts[place // 50]) % 50) for place in places)
    of_each = [Counter(simulation for simulation, _ in found)[it] for it in range(num_simulations)]
    assert max(of_each) - min(of_each) <= 1


def test_the_choice_is_the_same_wherever_samples_are_and_whichever_simulations_are_complete(tmp_path: Path) -> None:
    chosen = choice(few(tmp_path, validation={"simulations": 5, "max_batches": 3, "batch_size": 10}))
    whole = all_samples(5)
    everything = keys(chosen(whole))
    of_ranks = [keys(chosen(whole[np.arange(250) % 3 == rank])) for rank in range(3)]
    assert sorted(key for of_rank in of_ranks for key in of_rank) == everything
    early = keys(chosen(all_samples(5, complete={1, 4})))
    assert early == [key for key in everything if key[0] in (1, 4)]


def test_windows_are_chosen_as_samples_are(tmp_path: Path) -> None:
    window = {"samples": {"window": {"length": 3, "stride": 4}}}
    steps = {"study.time_steps": {"first": 10, "last": 108, "every": 2}}
    config = few(tmp_path, **steps, **window, validation={"simulations": 2, "max_batches": 1, "batch_size": 6})
    store = ValidationStore(2)
    for simulation in range(2):
        for time_step in range(10, 109, 2):
            store.add(simulation, time_step, {"x": np.zeros(1)}, {"x": True})
        store.complete(simulation)
    samples = HeldOutSamples(
        store=store, parameters_of=lambda it: np.zeros(1), window_shape=window_shape(config), chosen=choice(config)
    )
    # Twelve windows of each, from the steps 0, 4, 8, … on: every fourth one. The second is counted from its eighth on.
    assert keys(samples()) == [(0, 10 + 8 * it) for it in (3, 7, 11)] + [(1, 10 + 8 * it) for it in (0, 4, 8)]


def test_without_a_limit_all_are_taken(tmp_path: Path) -> None:
    assert len(choice(few(tmp_path, validation={"simulations": 2}))(all_samples(2))) == 100


def test_any_object_with_a_length_and_items_is_a_dataset_also_without_torch() -> None:
    class Squares:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return np.full(2, float(index * index)), index

    class First(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            squares, indices = batch
            assert squares.shape == (len(indices), 2)
            return squares.mean()

    assert validation(First(Squares())).run() == {"loss": pytest.approx(5 / 3)}


def test_sets_of_several_kinds_have_their_own_values() -> None:
    sets = {"near": TensorDataset(VALUES[:4]), "far": [(VALUES[4:],)]}
    assert validation(Watching(sets)).run() == {"loss": 3.0, "near/loss": 1.5, "far/loss": 5.0}


def test_a_stream_of_samples_is_refused() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0

    with pytest.raises(UserCodeError, match="put it into a DataLoader"):
        validation(Watching(Endless())).run()


def changed(place: int, rank: int) -> torch.Tensor:
    values = VALUES.clone()
    values[place] += rank
    return values


class Labelled(Dataset[Any]):
    """The label of the last sample belongs to the rank."""

    def __init__(self, rank: int) -> None:
        self.labels = [0.0, 1.0, 2.0 + rank]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return np.zeros(2), self.labels[index]


class ByName(Dataset[Any]):
    """Its items are found by names."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, name: str) -> Any:
        return (VALUES["abc".index(name)],)


class Written(Dataset[Any]):
    """Its items are what a collate_fn makes arrays of."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        masked = np.ma.masked_array([1.0, 2.0], [False, True])
        return np.array([f"{index}"]), np.array(["2026-01-01"], "M8[D]"), masked


def read(items: list[Any]) -> Any:
    return (torch.tensor([[float(text[0])] * 2 for text, _, _ in items]),)


@pytest.mark.parametrize(
    "of_rank",
    [
        lambda: DataLoader(Written(), batch_size=2, collate_fn=read),
        lambda: DataLoader(ByName(), sampler=list("abc")),
        lambda: DataLoader(TensorDataset(VALUES), batch_size=2),
        lambda: DataLoader(Generated(), batch_size=None),
    ],
)
def test_a_set_that_is_the_same_on_all_ranks_is_shared_out(of_rank: Callable[[], Any]) -> None:
    def run(ranks: Ranks) -> dict[str, float] | None:
        return validation(Watching(of_rank()), ranks).run()

    first, second = on_ranks(2, run)
    assert first == second
    assert first is not None


class Generated(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((part,) for part in VALUES.split(2))


@pytest.mark.parametrize(
    "of_rank",
    [
        lambda rank: TensorDataset(VALUES[rank::2]),
        lambda rank: TensorDataset(VALUES.roll(rank)),
        lambda rank: DataLoader(TensorDataset(VALUES[:6]), sampler=[rank, rank + 2, rank + 4]),
        lambda rank: [(part,) for part in VALUES.roll(rank).split(2)],
        lambda rank: {"near": [(VALUES,)], "far": [(VALUES + rank,)]},
        lambda rank: [(VALUES,)] if rank == 0 else [],
        lambda rank: [(VALUES,)] * (1 + rank),
        lambda rank: [(VALUES,)] if rank == 0 else None,
        lambda rank: {f"of rank {rank}": [(VALUES,)]},
        lambda rank: TensorDataset(changed(-1, rank)),
        lambda rank: TensorDataset(changed(3, rank)),
        lambda rank: [(part,) for part in changed(-1, rank).split(2)],
        lambda rank: DataLoader(TensorDataset(changed(-1, rank)), batch_size=2),
        lambda rank: DataLoader(TensorDataset(VALUES), sampler=[0, 1 + rank, 2 - rank]),
        lambda rank: Labelled(rank),
    ],
)
def test_a_set_that_differs_between_the_ranks_is_refused(of_rank: Callable[[int], Any]) -> None:
    def run(ranks: Ranks) -> None:
        with pytest.raises(UserCodeError, match=r"must give the same on every rank.*do not split it yourself"):
            validation(Watching(of_rank(ranks.rank)), ranks).run()

    on_ranks(2, run)
