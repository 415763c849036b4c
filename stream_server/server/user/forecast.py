"""The forecast of a model of windows: which field its output is, and in which scale."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.server.user.losses import numbers
from stream_server.storage.plain_state import as_array

Array = NDArray[Any]

TOLERANCE = 1e-2
"""A relative deviation that rounding to 16 bits may make."""
MAX_COMPARED = 2**16
"""Values that are compared to recognise a field, at least those of one sample."""


def forecast(known: Array, output: Any, target: Any, scale: Callable[[Array], Array]) -> Array | None:
    """The steps that a model forecasts, in the unit of the field and the shape of `known`; None if they are not known.

    Args:
        known: the steps that stand where the model forecasts, shape (n, steps, …), as the batch was made of them.
        output: what the model gives, an array of any framework.
        target: what it is trained towards, in the same scale.
        scale: brings an array in the scale of the training to the unit of the field.
    """
    if output is None or target is None:
        return None
    outputs, targets = array_of(output), array_of(target)
    if outputs.size != known.size or targets.size != known.size:
        return None
    outputs, targets = outputs.reshape(known.shape), targets.reshape(known.shape)
    few = slice(max(1, MAX_COMPARED // known[0].size))
    for in_unit in (scale, lambda array: array):
        if is_field(in_unit(targets[few]), known[few]):
            return np.asarray(in_unit(outputs))
    return None


def array_of(value: Any) -> Array:
    """A NumPy array of floating or complex numbers of an array of any framework."""
    if not str(getattr(value, "dtype", "")).rpartition(".")[2].startswith("complex"):
        return numbers(value)
    return as_array(value.detach() if hasattr(value, "detach") else value)


def is_field(array: Array, field: Array) -> bool:
    """Whether an array has the values of a field, but for the rounding to 16 bits; others than finite ones are any."""
    known = np.isfinite(array) & np.isfinite(field)
    values = field[known]
    noise = TOLERANCE * float(np.max(np.abs(values), initial=0.0))
    return np.allclose(array[known], values, rtol=TOLERANCE, atol=noise)
