"""Running means and variances of arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CHUNK_VALUES = 1 << 18


class Moments:
    """Count, mean and sum of squared deviations, of each value of a shape; scalars for the shape ().

    All are float64 arrays of that shape: `count`, `mean` and `m2`. Elements that are not finite are left out, so that
    counts may differ from value to value. Sums over pieces are put together as Chan, Golub and LeVeque do (The American
    Statistician 37, 1983): no digits cancel, whatever the mean.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.count: Array = np.zeros(shape)
        self.mean: Array = np.zeros(shape)
        self.m2: Array = np.zeros(shape)

    @property
    def variance(self) -> Array:
        """The mean squared deviation from the mean; 0 where nothing was seen."""
        return self.m2 / np.maximum(self.count, 1)

    def update(self, block: NDArray[Any]) -> None:
        """Take in a block of shape (n, …); each row holds one shape, or any number of values when the shape is ()."""
        values_per_row = int(np.prod(block.shape[1:]))
        size = max(1, _CHUNK_VALUES // max(1, values_per_row))
        for start in range(0, len(block), size):
            rows = block[start : start + size]
            if not self.mean.ndim:
                rows = rows.reshape(-1)
            if rows.size:
                self.merge(_of_rows(rows.astype(np.float64)))

    def merge(self, other: "Moments") -> None:
        """Merge the moments of other data into these."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        self.m2 = self.m2 + other.m2 + delta * delta * (self.count * share)
        # Of a first piece the mean is taken as it is.
        self.mean = np.where(self.count == 0, other.mean, self.mean + delta * share)
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        """The three arrays, as copies."""
        return {name: getattr(self, name).copy() for name in ("count", "mean", "m2")}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Moments":
        """Restore moments from the result of `state_dict`."""
        moments = cls()
        for name in ("count", "mean", "m2"):
            setattr(moments, name, np.array(state[name], np.float64))
        return moments


def _of_rows(rows: Array) -> Moments:
    """The moments of rows, over their first axis, in two passes."""
    moments = Moments(rows.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        total = rows.sum(0)
    if np.all(np.isfinite(total)):
        count: Array = np.full(total.shape, float(len(rows)))
        deviations = rows - total / len(rows)
    else:
        finite = np.isfinite(rows)
        count = finite.sum(0).astype(np.float64)
        rows = np.where(finite, rows, 0.0)
        total = rows.sum(0)
        deviations = np.where(finite, rows - total / np.maximum(count, 1), 0.0)
    # What the rounded mean leaves over, as the corrected two-pass algorithm has it.
    rest = deviations.sum(0) / np.maximum(count, 1)
    moments.count = count
    moments.mean = np.asarray(total / np.maximum(count, 1) + rest)
    moments.m2 = np.asarray(np.einsum("i...,i...->...", deviations, deviations) - count * rest * rest)
    return moments
