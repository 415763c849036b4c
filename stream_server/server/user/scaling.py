"""Bringing arrays of any framework to order one and back."""

from typing import Any

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.user.running_moments import Array


class Scaling:
    """(array − mean) / std and its inverse, for means of one shape; `name` is what they are of, for errors.

    A standard deviation of 0 divides by 1.
    """

    def __init__(self, name: str, mean: Array, std: Array) -> None:
        self.mean = mean
        self.std = std
        self._name = name
        self._divisor: Array = np.where(std > 0, std, 1.0)

    def apply(self, array: Any) -> Any:
        """The array at order one, in its own type; whole numbers become float64.

        Raises:
            UserCodeError: its shape does not go with that of the means.
        """
        array = _floating(array)
        return (array - self._like(array, self.mean)) / self._like(array, self._divisor)

    def undo(self, array: Any) -> Any:
        """The inverse of `apply`, and raises the same."""
        array = _floating(array)
        return array * self._like(array, self._divisor) + self._like(array, self.mean)

    def size_of(self, mean: Array, std: Array, where: Any) -> float:
        """The largest root mean square, after `apply`, of values of such means and standard deviations, if `where`."""
        sizes = np.sqrt((mean - self.mean) ** 2 + std**2) / self._divisor
        return float(np.max(sizes, initial=0.0, where=where))

    def _like(self, array: Any, values: Array) -> Any:
        """Means or divisors as the same kind of array, in a shape that goes with it."""
        shape, found = values.shape, tuple(array.shape)
        if shape and found[-len(shape) :] != shape:
            if found[-1:] != (values.size,):
                raise UserCodeError(
                    f"the statistics of {self._name} go with arrays of shape (…, {', '.join(map(str, shape))}) or "
                    f"(…, {values.size}), but one of {found} was given"
                )
            values = values.reshape(-1)
        return array.new_tensor(values) if hasattr(array, "new_tensor") else values.astype(array.dtype)


def _floating(array: Any) -> Any:
    if hasattr(array, "new_tensor"):
        return array if array.is_floating_point() else array.double()
    if not hasattr(array, "dtype"):
        array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind in "biu" else array
