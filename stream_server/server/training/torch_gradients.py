"""The gradients of an update, between the last backward pass and the optimizer."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stream_server.server.torch_server import TorchServer
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.torch_precision import LossScaling

if TYPE_CHECKING:
    from stream_server.config.sections import Training


class Gradients:
    """Makes the gradients ready for the optimizer: mean over the samples, loss scale taken out, clipped.

    They are those of the union batch, so that all ranks find the same norm. The norm is logged as `grad/norm` as it
    was before clipping. `scaling` is the loss scaling in use, if any.
    """

    def __init__(self, server: TorchServer, settings: "Training", scaling: LossScaling | None) -> None:
        self._server = server
        self._settings = settings
        self._scaling = scaling

    def prepare(self, weight: float) -> float:
        """Multiply with `weight` and clip; gives the norm, which is not finite if any gradient is not.

        Raises:
            UserCodeError: the optimizer's gradients cannot be clipped.
        """
        parameters = self._server.model.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if weight != 1 and gradients:
            torch._foreach_mul_(gradients, weight)
        if self._settings.clip_norm is not None:
            return float(self._clip(max_norm=self._settings.clip_norm, error_if_nonfinite=False))
        norm = _norm(gradients) / (self._scaling.scale if self._scaling else 1.0)
        if self._settings.clip_value is not None:
            self._clip(clip_val=self._settings.clip_value)
        return norm

    def _clip(self, **limit: Any) -> Any:
        """Clip, after taking out the loss scale, which the optimizer's step would do otherwise."""
        server = self._server
        name = f"the optimizer of {type(server).__name__}"
        return call_user(name, lambda: server.fabric.clip_gradients(server.model, server.optimizer, **limit))


def _norm(gradients: Sequence[Tensor]) -> float:
    """The norm of all elements; sums of 16-bit numbers are taken in 32 bits."""
    if not gradients:
        return 0.0
    dtype = reduce(torch.promote_types, {gradient.dtype for gradient in gradients}, torch.float32)
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients), 2, dtype))))
