"""Predictions of single samples beside the truth, as they are shown to people."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stream_server.ragged import is_ragged
from stream_server.server.user.forecast import is_field
from stream_server.server.user.simulation_data import SimulationData

Array = NDArray[Any]
Rendering = Mapping[str, tuple[Array, Array]]
"""By name the truth and the prediction, of one shape."""

OUTPUT = "output"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The output of the model for one sample, and the target it is trained towards; None if the batch has none.

    Both are NumPy arrays without the axis of the batch, in the scale of the training.
    """

    output: Array
    target: Array | None


def render(sample: SimulationData, prediction: Prediction, denormalize: Callable[[str, Array], Array]) -> Rendering:
    """The field that the model predicts, in its shape and unit; the bare output beside its target if it is no field.

    Of a window it is that of the last steps, as many as the target has. It is taken for a field only if the target,
    after `denormalize`, has that field's values.
    """
    if prediction.target is None:
        return {}
    target, output = prediction.target, prediction.output
    for name, whole in sample.fields.items():
        if is_ragged(whole) or (sample.time_steps is not None and whole.shape[:1] != sample.time_steps.shape):
            # It is no forecast of one shape.
            continue
        field = whole if sample.time_steps is None else _last_steps(whole, target.size)
        if target.size != field.size or output.size != field.size:
            continue
        if is_field(denormalize(name, target.reshape(field.shape)), field):
            return {name: (field, denormalize(name, output.reshape(field.shape)))}
    return {OUTPUT: (target, output.reshape(target.shape))} if output.size == target.size else {}


def _last_steps(window: Array, size: int) -> Array:
    """The last steps of a field that have so many values in all; one alone comes without an axis for steps."""
    if not window.ndim:
        return window
    num = size // max(1, window[0].size)
    return window[-1] if num == 1 else window[-num:] if num else window
