"""Runs of a study on changing numbers of ranks, as far as its progress is concerned."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from stream_server.server.training.lockstep import Turn


def study(
    *,
    num_samples: int,
    batch_size: int,
    pseudo_epochs: int = 1,
    accumulate: int = 1,
    max_batches: int | None = None,
) -> Any:
    """What says how long a study of simulations of one time step is."""
    return SimpleNamespace(
        study=SimpleNamespace(simulations=num_samples, time_steps=SimpleNamespace(num=1)),
        buffer=SimpleNamespace(policy="firo", pseudo_epochs=pseudo_epochs),
        training=SimpleNamespace(batch_size=batch_size, accumulate=accumulate, max_batches=max_batches),
    )


def full_turns(num_ranks: int, batch_size: int, num: int) -> Iterator[Turn]:
    """Steps on `num` samples, drawn once, of which all but the last are on full batches of all ranks."""
    while num:
        sizes = []
        for rank in range(num_ranks):
            sizes.append(min(batch_size, -(-num // (num_ranks - rank))))
            num -= sizes[-1]
        yield Turn(batch=None, sizes=tuple(sizes), num_first=sum(sizes), lonely=False)
