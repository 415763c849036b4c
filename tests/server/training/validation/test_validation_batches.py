"""A validation set may be a list of batches, a loader or a dataset; each of its samples counts once."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stream_server.errors import UserCodeError
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.framework import TorchCollate
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Server, validation

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
