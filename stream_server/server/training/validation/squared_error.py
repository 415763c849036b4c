"""The squared error of predictions: of each sample, and of all against the variance of the targets."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.server.ranks.communicator import Ranks

Array = NDArray[Any]


class SquaredError:
    """The mean squared error of predictions over the variance of their targets, under construction.

    Of each of the values that a target consists of, the variance is that around its own mean over the samples: always
    to predict these means would give 1. Main thread.
    """

    def __init__(self) -> None:
        self._num = 0
        self._errors = 0.0
        self._squares = 0.0
        self._sums: Array = np.zeros(0)
        self._is_known = True

    def add(self, outputs: Array | None, targets: Array | None) -> Array | None:
        """Add the samples of a batch; gives the mean squared error of each of them, None without outputs.

        It is NaN where there is nothing to compare with, and the ratio is then unknown.
        """
        errors = None if outputs is None else squared_errors(outputs, targets)
        if errors is None or targets is None or not np.isfinite(errors).all():
            self._is_known = False
            return errors
        flat = _numbers_of(targets)
        if self._num and flat.shape[1] != len(self._sums):
            self._is_known = False
            return errors
        self._sums = flat.sum(axis=0) + (self._sums if self._num else 0.0)
        self._squares += float(np.vdot(flat, flat))
        self._errors += float(np.sum(errors)) * targets.size / flat.size
        self._num += len(flat)
        return errors

    def over_variance(self, ranks: Ranks) -> float | None:
        """The ratio over the samples of all ranks. Collective.

        None if there is a sample of which it is not known, or if they do not vary.
        """
        sizes: list[list[int]] = ranks.broadcast(ranks.gather([len(self._sums), int(self._is_known)]))
        size = max(size for size, _ in sizes)
        if not size or not all(is_known and of_rank in (0, size) for of_rank, is_known in sizes):
            return None
        mine = np.zeros(3 + size)
        mine[:3] = self._num, self._errors, self._squares
        mine[3:] = self._sums if self._num else 0.0
        sums = ranks.all_reduce(mine)
        num, errors, squares = sums[:3]
        variance = float(squares / num - np.sum((sums[3:] / num) ** 2)) / size
        ratio = float(errors / num) / variance if variance > 0 else math.inf
        return ratio if math.isfinite(ratio) else None


def squared_errors(outputs: Array, targets: Array | None) -> Array:
    """The mean squared error of each row in float64, of complex values that of the magnitude.

    It is NaN where there is nothing to compare with.
    """
    if targets is None or targets.size != outputs.size:
        return np.full(len(outputs), np.nan)
    num = len(outputs)
    dtype = np.complex128 if np.iscomplexobj(outputs) or np.iscomplexobj(targets) else np.float64
    difference = np.subtract(outputs.reshape(num, -1), targets.reshape(num, -1), dtype=dtype)
    flat = difference.view(np.float64)
    return np.asarray(np.einsum("ij,ij->i", flat, flat) / difference.shape[1])


def _numbers_of(targets: Array) -> Array:
    """The values of each row in float64, shape (n, numbers); a complex value is two numbers."""
    flat = targets.reshape(len(targets), -1)
    return np.ascontiguousarray(flat, np.result_type(flat, np.float64)).view(np.float64)
