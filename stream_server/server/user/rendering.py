"""Predictions of single samples beside the truth, as they are shown to people."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from stream_server.ragged import Array, is_ragged
from stream_server.server.user.forecast import scale_of_target
from stream_server.server.user.simulation_data import SimulationData

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


def render(
    sample: SimulationData, prediction: Prediction, denormalize: Callable[[str, Array], Array], rounding: float
) -> Rendering:
    """The fields that the model predicts, in their shape and unit; the bare output beside its target if it is none.

    The target may have several fields, one after the other. Of a window, a field is that of the last steps, as many as
    the target has. A part is taken for a field only if the target has that field's values, as `scale_of_target` says.
    """
    target, output = prediction.target, prediction.output
    if target is None or output.size != target.size:
        return {}
    shown: dict[str, tuple[Array, Array]] = {}
    fields = dict(_dense_fields(sample, target.size))
    targets, outputs = target.reshape(-1), output.reshape(-1)
    while targets.size:
        for name, field in fields.items():
            if 0 < field.size <= targets.size and name not in shown:
                scale = scale_of_target(field, targets[: field.size], partial(denormalize, name), rounding)
                if scale is not None:
                    shown[name] = field, scale(outputs[: field.size].reshape(field.shape))
                    targets, outputs = targets[field.size :], outputs[field.size :]
                    break
        else:
            return {OUTPUT: (target, output.reshape(target.shape))}
    return shown


def _dense_fields(sample: SimulationData, size: int) -> Iterator[tuple[str, Array]]:
    """The fields of one shape, or of a window their last steps that have `size` values."""
    steps = sample.time_steps
    for name, whole in sample.fields.items():
        if not is_ragged(whole) and (steps is None or whole.shape[:1] == steps.shape):
            yield name, whole if steps is None else _last_steps(whole, size)


def _last_steps(window: Array, size: int) -> Array:
    """The last steps of a field that have so many values in all; one alone comes without an axis for steps."""
    if not window.ndim:
        return window
    num = size // max(1, window[0].size)
    return window[-1] if num == 1 else window[-num:] if num else window
