"""Which of the batches that were ever trained make up the study: the surviving timeline."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tests.faults.chaos.audit import Incarnation, Trained


def owner(incarnations: Sequence[Incarnation], batch: int) -> int:
    """The incarnation whose batch of this index survived.

    Each incarnation goes on from the batches of its base, and what was trained beyond them is forgotten. 0 when
    there is no incarnation.
    """
    return max((incarnation.number for incarnation in incarnations if incarnation.batches <= batch), default=0)


def surviving(incarnations: Sequence[Incarnation], trained: Iterable[Trained]) -> list[Trained]:
    """The batches of the timeline that ended the study."""
    return [one for one in trained if one.incarnation == owner(incarnations, one.batch)]


def replayed(incarnations: Sequence[Incarnation], trained: Iterable[Trained]) -> list[list[float]]:
    """For each incarnation but the first, when the batches were trained that the one before had trained in vain."""
    times: dict[tuple[int, int], float] = {}
    for one in trained:
        times[one.incarnation, one.batch] = max(one.time, times.get((one.incarnation, one.batch), 0.0))
    return [
        sorted(
            time
            for (incarnation, batch), time in times.items()
            if incarnation == earlier.number and batch >= later.batches
        )
        for earlier, later in pairwise(incarnations)
    ]
