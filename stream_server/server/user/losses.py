"""Losses as users return them: one number for a batch, or one value for each of its samples."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import UserCodeError
from stream_server.storage.plain_state import as_array

Array = NDArray[Any]


def loss_of(value: Any, num: int, where: str) -> tuple[float, Array | None]:
    """The mean over a batch of `num` samples, and the value of each if an array of shape (num,) says so, in float64.

    Args:
        value: a number, or an array of any framework.
        where: what errors say of its origin, such as `Heat.validation_step returned "loss"`.

    Raises:
        UserCodeError: it is neither.
    """
    shape = tuple(getattr(value, "shape", ()))
    if shape == (num,):
        values = numbers(value).astype(np.float64)
        return float(np.mean(values)), values
    if math.prod(shape) != 1:
        raise UserCodeError(
            f"{where} of shape {shape} for a batch of {num} samples: return the mean, a single number, or one value "
            f"for each sample, of shape ({num},)"
        )
    try:
        return float(value.reshape(()) if shape else value), None
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserCodeError(f"{where} that is no number: {error}") from error


def numbers(value: Any) -> Array:
    """A NumPy array of 32-bit or 64-bit floats of an array of any framework."""
    if hasattr(value, "detach"):
        value = value.detach().float() if value.element_size() < 4 else value.detach()
    array = as_array(value)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
