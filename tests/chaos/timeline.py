"""Which of the batches that were ever trained make up the study: the surviving timeline."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tests.chaos.audit import Epoch, Trained


def owner(epochs: Sequence[Epoch], batch: int) -> int:
    """The epoch whose batch of this index survived.

    Each epoch trains on from the batches of its base, and what earlier ones trained beyond them is forgotten. 0 when
    there is no epoch.
    """
    return max((epoch.number for epoch in epochs if epoch.batches <= batch), default=0)


def surviving(epochs: Sequence[Epoch], trained: Iterable[Trained]) -> list[Trained]:
    """The batches of the timeline that ended the study."""
    return [one for one in trained if one.epoch == owner(epochs, one.batch)]


def replayed(epochs: Sequence[Epoch], trained: Iterable[Trained]) -> list[list[float]]:
    """For each epoch but the first, when the batches were trained that the one before it had trained for nothing."""
    times: dict[tuple[int, int], float] = {}
    for one in trained:
        times[one.epoch, one.batch] = max(one.time, times.get((one.epoch, one.batch), 0.0))
    return [
        sorted(time for (epoch, batch), time in times.items() if epoch == earlier.number and batch >= later.batches)
        for earlier, later in pairwise(epochs)
    ]
