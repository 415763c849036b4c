"""The unit cube that stands for the ranges of the parameters: samplers draw in it, whatever the scales are.

Why: docs/decisions/0066-parameters-are-numbers.md
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stream_server.config.parameters import Bounds

Array = NDArray[np.float64]


class UnitCube:
    """Places in the unit cube as values of the parameters, and back.

    A place is a row of numbers from 0 to 1, one for each parameter, and even in the parameter's logarithm if that has a
    logarithmic scale. Each whole number stands for a piece of the same length, on a logarithmic scale for the piece
    that rounds to it.
    """

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        self.low, self.high = np.array([[bound.low, bound.high] for bound in bounds], np.float64).reshape(-1, 2).T
        self._is_log = np.array([bound.log for bound in bounds], bool)
        self._is_whole = np.array([bound.integer for bound in bounds], bool)
        margin = np.where(self._is_whole, 0.5, 0.0)
        self._first, self._last = self._scale(self.low - margin), self._scale(self.high + margin)

    def __len__(self) -> int:
        return len(self.low)

    def values(self, places: ArrayLike) -> Array:
        """The values of the parameters, within their bounds, at places of shape (…, d)."""
        at = np.asarray(places, np.float64)
        values = self._first * (1 - at) + self._last * at
        values = np.where(self._is_log, np.exp(np.where(self._is_log, values, 0.0)), values)
        values = np.where(self._is_whole, np.rint(values), values)
        return np.clip(values, self.low, self.high)

    def places(self, values: ArrayLike) -> Array:
        """The places of values of shape (…, d)."""
        places: Array = (self._scale(np.asarray(values, np.float64)) - self._first) / (self._last - self._first)
        return places

    def _scale(self, values: Array) -> Array:
        return np.where(self._is_log, np.log(np.where(self._is_log, values, 1.0)), values)
