"""The field that a model of one field forecasts, and the scale of its output."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stream_server.ragged import Array
from stream_server.server.user.losses import numbers
from stream_server.storage.plain_state import as_array

Scale = Callable[[Array], Array]

FLOATS = 2.0**-21
"""A relative deviation that some operations on 32-bit floats may make."""
SHORT_FLOATS = 2.0**-7
"""A relative deviation that rounding to 16 bits may make."""


def rounding_of(precision: str) -> float:
    """The relative deviation of a target from what user code made, by `training.precision`."""
    return SHORT_FLOATS if precision in ("16-true", "bf16-true") else FLOATS


def scale_of_target(field: Array, target: Any, denormalize: Scale, rounding: float) -> Scale | None:
    """Function that gives a target the unit of this field, `denormalize` or none; None: it is not this field."""
    if target is None:
        return None
    targets = array_of(target)
    if targets.size != field.size:
        return None
    for scale in (denormalize, lambda array: array):
        if is_field(targets.reshape(field.shape), field, scale, rounding):
            return scale
    return None


def array_of(value: Any) -> Array:
    """A NumPy array of floating or complex numbers of an array of any framework."""
    if not str(getattr(value, "dtype", "")).rpartition(".")[2].startswith("complex"):
        return numbers(value)
    return as_array(value.detach() if hasattr(value, "detach") else value)


def is_field(target: Array, field: Array, scale: Scale, rounding: float) -> bool:
    """Whether a target has the values of a field, but for rounding; others than finite ones are any.

    `scale` brings it to the unit of the field, and a target of 0 to an origin: the mean of the field, or 0. The values
    are compared by their distances from there, since a change of the temperature is near the mean as well if it is
    taken for a temperature. Where all of a field is at the origin, a change of 0 would pass for it: it is none.
    """
    values, origin = np.asarray(scale(target)), np.asarray(scale(np.zeros_like(target)))
    known = np.isfinite(values) & np.isfinite(field)
    values, origin, truth = values[known], origin[known], field[known]
    noise = FLOATS * float(np.max([np.abs(truth), np.abs(origin)], initial=0.0))
    has_distances = bool(np.any(np.abs(truth - origin) > 2 * noise))
    return has_distances and np.allclose(values - origin, truth - origin, rtol=rounding, atol=noise)
