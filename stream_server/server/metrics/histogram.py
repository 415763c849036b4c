"""Counts of values in fixed intervals, so that the histograms of several ranks can be added."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GROWTH = 1.1
SMALLEST = 1e-12
LARGEST = 1e20


def _limits() -> np.ndarray:
    num = int(np.ceil(np.log(LARGEST / SMALLEST) / np.log(GROWTH))) + 1
    positive = SMALLEST * GROWTH ** np.arange(num)
    return np.concatenate((-positive[::-1], positive, [np.finfo(np.float64).max]))


LIMITS = _limits()


@dataclass(kw_only=True, slots=True)
class Histogram:
    """Sums and counts of values; `counts[i]` of them lie in (LIMITS[i - 1], LIMITS[i]].

    The intervals are TensorBoard's own: each a tenth wider than the one before, so whole numbers up to 10
    are kept apart. Values that are not finite are left out.
    """

    num: int = 0
    min: float = float("inf")
    max: float = float("-inf")
    sum: float = 0.0
    sum_squares: float = 0.0
    counts: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, values: Any) -> Histogram:
        """The histogram of an array of any shape."""
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[np.isfinite(array)]
        if not array.size:
            return cls()
        # Looking the limits up among the sorted values is ten times quicker than each value among the limits.
        array.sort()
        counts = np.diff(np.searchsorted(array, LIMITS, "right"), prepend=0)
        places = np.flatnonzero(counts)
        return cls(
            num=array.size,
            min=float(array[0]),
            max=float(array[-1]),
            sum=float(array.sum()),
            sum_squares=float(np.square(array).sum()),
            counts=Counter(dict(zip(places.tolist(), counts[places].tolist(), strict=True))),
        )

    @property
    def statistics(self) -> dict[str, float]:
        """Mean, standard deviation, smallest and largest value; of one value at least."""
        mean = self.sum / self.num
        variance = max(0.0, self.sum_squares / self.num - mean * mean)
        return {"mean": mean, "std": math.sqrt(variance), "min": self.min, "max": self.max}

    def intervals(self) -> list[tuple[float, float, int]]:
        """Every interval with values in it, within `min` and `max`: lower end, upper end and count, in order."""
        return [
            (max(self.min, float(LIMITS[place - 1]) if place else -math.inf), min(self.max, float(LIMITS[place])), num)
            for place, num in sorted(self.counts.items())
        ]

    def add(self, other: Histogram) -> None:
        """Take in the values of another histogram."""
        self.num += other.num
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.sum += other.sum
        self.sum_squares += other.sum_squares
        self.counts.update(other.counts)

    def to_json(self) -> list[Any]:
        """Plain values for another rank."""
        return [self.num, self.min, self.max, self.sum, self.sum_squares, sorted(self.counts.items())]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Histogram:
        num, low, high, total, squares, counts = plain
        return cls(num=num, min=low, max=high, sum=total, sum_squares=squares, counts=Counter(dict(counts)))
