"""Runs of a study on changing numbers of ranks, as far as its progress is concerned."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stream_server.server.progress.batches import StepCounts, UnionBatch


def study(
    *,
    num_samples: int,
    batch_size: int,
    pseudo_epochs: int = 1,
    accumulate: int = 1,
    max_batches: int | None = None,
) -> Any:
    """The settings that give the length of a study of simulations of one time step."""
    return SimpleNamespace(
        study_dir=Path(),
        study=SimpleNamespace(
            simulations=num_samples, time_steps=SimpleNamespace(num=1), seed=0, data_seed=0, rounds=None
        ),
        samples_per_simulation=1,
        buffer=SimpleNamespace(policy="firo", pseudo_epochs=pseudo_epochs, capacity=1, watermark=1, args={}),
        training=SimpleNamespace(
            batch_size=batch_size, accumulate=accumulate, max_batches=max_batches, draws_per_sample=None
        ),
    )


def full_batches(num_ranks: int, batch_size: int, num: int) -> Iterator[UnionBatch]:
    """Steps on `num` samples, drawn once, of which all but the last are on full batches of all ranks."""
    while num:
        sizes = []
        for rank in range(num_ranks):
            sizes.append(min(batch_size, -(-num // (num_ranks - rank))))
            num -= sizes[-1]
        yield UnionBatch(own=None, sizes=tuple(sizes), counts=StepCounts(num_first=sum(sizes)))
