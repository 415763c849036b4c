"""The arithmetic of a model: number formats, loss scaling, and torch's trade-offs of precision for speed."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stream_server.errors import ConfigError
from stream_server.server.training.torch.learning_rates import before_each_step
from stream_server.server.training.torch.lightning import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from stream_server.wording import counted

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings

# What a CPU does about as fast and safely: Fabric would take it without a word.
_INSTEAD_ON_CPU = {"16-mixed": "bf16-mixed", "16-true": "bf16-true"}
_CUBLAS, _CUBLAS_REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"

# In a network of three layers that learned in bfloat16 as in float32, less than 7 % of the weights were stuck, and 11 %
# where the loss stayed twice as large.
MANY_STUCK = 0.1
FIRST_UPDATE = 16
MOST_OF_PARAMETER = 256

_log = logging.getLogger(__name__)


class Double(DoublePrecision):
    """64-true, also of complex weights, as those of spectral layers are, which `Module.double` leaves as they are."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        converted: nn.Module = super().convert_module(module)
        for it in (*converted.parameters(), *converted.buffers()):
            if it.is_complex():
                it.data = it.data.to(torch.complex128)
        return converted


class LossScaling(MixedPrecision):
    """16-mixed, in which the scale stays the same until all optimizers have used the gradients of a backward pass.

    Fabric changes it after the step of each optimizer, so that a second one would divide by another number than its
    gradients were multiplied with.
    """

    def __init__(self, device: torch.device, scaler: torch.amp.GradScaler) -> None:
        super().__init__("16-mixed", device.type, scaler)
        self.loss_scaler = scaler
        self._has_stepped = False
        # A rank that has no batch before the first update would have no scale.
        scaler.scale(torch.zeros(1, device=device))

    @property
    def scale(self) -> float:
        """The factor by which the losses are multiplied."""
        return float(self.loss_scaler.get_scale())

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        self.update_scale()
        super().backward(tensor, model, *args, **kwargs)

    def unscale_gradients(self, optimizer: Any) -> None:
        """Take out the scale, also for fused optimizers: Fabric refuses them, but the scaler hands it to their step."""
        self.loss_scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Step, unless the gradients of this optimizer are not finite."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("loss scaling and the LBFGS optimizer are not compatible")
        self._has_stepped = True
        return self.loss_scaler.step(optimizer, **kwargs)

    def update_scale(self) -> None:
        """All optimizers have been stepped: lower the scale if there was an overflow, or raise it now and then."""
        if self._has_stepped:
            self.loss_scaler.update()
            self._has_stepped = False


@dataclass(frozen=True, slots=True)
class _Noted:
    """Some weights of an optimizer before a step, which of them had a gradient, and the learning rates then."""

    weights: list[Tensor]
    had_gradient: list[Tensor]
    rates: list[float]


class StuckWeights:
    """Compares some weights of each parameter of 16 bits before the updates 16, 32, 64, … of its optimizer.

    A weight that had a gradient at one of these and is the same at the next, not different by one bit, is stuck. So an
    optimizer that rounds at random, or adds up what it has rounded away, has none. Nothing is said while a rate grows.

    Attributes:
        warning: what people should know of them, once they are many.
    """

    def __init__(self) -> None:
        self.warning = ""
        self._num_steps: dict[int, int] = {}
        self._noted: dict[int, _Noted] = {}

    def watch(self, optimizer: Any) -> None:
        """Compare the weights of an optimizer from now on."""
        before_each_step(optimizer, self._before_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        num = self._num_steps[id(optimizer)] = self._num_steps.get(id(optimizer), 0) + 1
        if self.warning or num < FIRST_UPDATE or num & (num - 1):
            return
        now, before = _note(optimizer), self._noted.pop(id(optimizer), None)
        self._noted[id(optimizer)] = now
        if before is None or [it.shape for it in before.weights] != [it.shape for it in now.weights]:
            return
        if not now.weights or any(new > old for new, old in zip(now.rates, before.rates, strict=True)):
            return
        same = sum(
            (had & (old == new)).sum()
            for had, old, new in zip(before.had_gradient, before.weights, now.weights, strict=True)
        )
        num_with_gradient = int(sum(had.sum() for had in before.had_gradient))
        if num_with_gradient and (share := int(same) / num_with_gradient) > MANY_STUCK:
            self._warn(share, num // 2, now.weights[0].dtype)

    def _warn(self, share: float, num_updates: int, dtype: torch.dtype) -> None:
        self.warning = (
            f"{share:.0%} of the weights in {str(dtype).removeprefix('torch.')} that had a gradient did not change in "
            f"{counted(num_updates, 'update')}, since each was smaller than half a unit in their last place: keep the "
            'weights in float32, and compute in 16 bits by training.precision "bf16-mixed"; or take a larger learning '
            "rate, or an optimizer that rounds at random"
        )
        _log.warning("%s", self.warning)


def check_precision(name: str, device: torch.device) -> None:
    """Check that `training.precision` is there on this device.

    Raises:
        ConfigError: it needs a GPU.
    """
    if device.type == "cpu" and name in _INSTEAD_ON_CPU:
        raise ConfigError(
            f'training.precision "{name}" needs a GPU, and there is none here: '
            f'write "{_INSTEAD_ON_CPU[name]}" or "32-true"'
        )


def make_precision(name: str, device: torch.device) -> Precision:
    """Fabric's plugin for `training.precision`.

    Raises:
        ConfigError: it needs a GPU.
    """
    check_precision(name, device)
    match name:
        case "64-true":
            return Double()
        case "bf16-mixed":
            return MixedPrecision("bf16-mixed", device.type)
        case "16-mixed":
            return LossScaling(device, torch.amp.GradScaler(device.type))
        case "bf16-true" | "16-true":
            return HalfPrecision(name)
        case _:
            return Precision()


@contextmanager
def numerics(settings: "TrainingSettings") -> Iterator[None]:
    """Within, torch computes as `training` says."""
    dtype, matmul_precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cublas = os.environ.get(_CUBLAS)
    if settings.precision == "64-true":
        # Fabric gives a model's output back in the default dtype: the loss would be taken in 32 bits.
        torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision(settings.matmul_precision)
    if settings.deterministic:
        os.environ.setdefault(_CUBLAS, _CUBLAS_REPEATABLE)
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(matmul_precision)
        if settings.deterministic:
            # Any call of it imports the compiler of torch.
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        if cublas is None:
            os.environ.pop(_CUBLAS, None)


def _note(optimizer: torch.optim.Optimizer) -> _Noted:
    weights, had_gradient, rates = [], [], []
    for group in optimizer.param_groups:
        rates.append(float(group.get("lr", 0.0)))
        for it in group["params"]:
            is_short = it.dtype in (torch.bfloat16, torch.float16)
            if is_short and it.grad is not None and not it.grad.is_sparse and rates[-1]:
                stride = 1 + it.numel() // MOST_OF_PARAMETER
                weights.append(it.detach().reshape(-1)[::stride].clone())
                had_gradient.append(it.grad.reshape(-1)[::stride] != 0)
    return _Noted(weights, had_gradient, rates)
