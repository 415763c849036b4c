"""The gradients of an update, between the last backward pass and the optimizer."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stream_server.server.training.torch.precision import LossScaling, Precision
from stream_server.server.training.torch.reduction import UnionGradients, clear, gradients_of
from stream_server.server.user.torch_server import TorchServer
from stream_server.user_code import call_user
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings

_ZERO = torch.zeros(())
# By a number on the device others are multiplied one by one, and those of 16 bits by a factor of 16 bits.
_MULTIPLIED_AT_ONCE = (torch.float32, torch.float64)


class Gradients:
    """Makes the gradients ready for the optimizer: mean over the samples, loss scale taken out, clipped.

    They are those of the union batch, so that all ranks find the same norm.

    Attributes:
        fault: what user code did to the gradients that were prepared last, for which there is no update.
    """

    def __init__(
        self, server: TorchServer, settings: "TrainingSettings", precision: Precision, union: UnionGradients
    ) -> None:
        self._server = server
        self._settings = settings
        self._precision = precision
        self._union = union
        self.fault = ""

    def prepare(self, parameters: Iterable[Tensor], weight: float) -> Tensor:
        """Multiply the gradients of `parameters` by `weight` and clip those of the optimizer.

        Gives the norm of all of them before clipping, or with `training.clip_norm` or `on_gradients` of what the
        optimizer has; it is not finite if any of these gradients is not. Only `on_gradients` waits for the device.

        Raises:
            UserCodeError: the optimizer's gradients cannot be clipped.
        """
        self.fault = ""
        parameters = list(parameters)
        gradients = gradients_of(parameters)
        if weight != 1 and gradients:
            torch._foreach_mul_(gradients, weight)
        if self._server.tell_gradients is not None:
            return self._shown(self._server.tell_gradients)
        if self._settings.clip_norm is not None:
            return self.clip(self._server.optimizer)
        norm = self._union.norm(parameters, gradients)
        if isinstance(self._precision, LossScaling):
            norm = norm / self._precision.scale
        self.clip(self._server.optimizer)
        return norm

    def clip(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Clip what this optimizer has as the settings say, after taking out the loss scale, which its step would do.

        Returns the norm before clipping, or 0 without `training.clip_norm`.
        """
        settings = self._settings
        if settings.clip_norm is None and settings.clip_value is None:
            return _ZERO
        self._unscale(optimizer)
        return self._limit(_parameters(optimizer))

    def _shown(self, tell: Callable[[Any], None]) -> Tensor:
        """Let user code see and change what the optimizer has, unless that makes no update; the norm before.

        With what is not finite then there is no update: the optimizer finds no gradient.
        """
        optimizer = self._server.optimizer
        self._unscale(optimizer)
        parameters = _parameters(optimizer)
        norm = self._union.norm(parameters, gradients_of(parameters))
        if not math.isfinite(norm):
            return norm
        tell(self._server.model)
        parameters = _parameters(optimizer)
        if not math.isfinite(left := self._union.norm(parameters, gradients_of(parameters))):
            clear(parameters)
            self.fault = "was made not finite by on_gradients"
            return left
        self._limit(parameters)
        return norm

    def _unscale(self, optimizer: torch.optim.Optimizer) -> None:
        call_user(f"the optimizer of {type(self._server).__name__}", self._precision.unscale_gradients, optimizer)

    def _limit(self, parameters: Sequence[Tensor]) -> Tensor:
        settings, gradients = self._settings, gradients_of(parameters)
        if not gradients:
            return _ZERO
        if settings.clip_value is not None:
            torch._foreach_clamp_min_(gradients, -settings.clip_value)
            torch._foreach_clamp_max_(gradients, settings.clip_value)
            return _ZERO
        if settings.clip_norm is None:
            return _ZERO
        norm = self._union.norm(parameters, gradients)
        # Who steps by hand may have gradients that are finite beside one that is not.
        factor = (settings.clip_norm / (norm + 1e-6)).clamp(max=1.0).nan_to_num(nan=1.0)
        alike = len({(each.dtype, each.device) for each in gradients}) == 1 and gradients[0].device == factor.device
        if alike and gradients[0].dtype in _MULTIPLIED_AT_ONCE:
            torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        else:
            torch._foreach_mul_(gradients, factor.item())
        return norm


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def warning_of_hooks(model: nn.Module) -> str:
    """The warning of hooks that are made for the whole gradient, where they are given parts of it; "" without any."""
    hooked = [name for name, each in model.named_parameters() if each._backward_hooks]
    if not hooked:
        return ""
    return (
        f"{listed(hooked)} of the model {'have' if len(hooked) > 1 else 'has'} a hook (register_hook): on "
        "several ranks, and with training.accumulate, it is given the part of the gradient that one batch of "
        "one rank has in the whole, and the parts are added up. A mask or a factor does not mind; what clips "
        "or scales by size does something else. Write training.clip_value or clip_norm instead, or do it in "
        "on_gradients"
    )
