"""The arithmetic of a model: number formats, loss scaling, and torch's trade-offs of precision for speed.

Why: docs/decisions/0033-no-fabric.md, and docs/decisions/0104-late-norm.md for `step_if_finite`
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stream_server.errors import ConfigError
from stream_server.server.training.torch.device_copies import mapped
from stream_server.server.training.torch.learning_rates import before_each_step
from stream_server.wording import counted

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings

# What a CPU does about as fast and safely.
_INSTEAD_ON_CPU = {"16-mixed": "bf16-mixed", "16-true": "bf16-true"}
# What weights and batches become.
_TRUE = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
# What autocast computes in.
_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_CUBLAS, _CUBLAS_REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"

# In a network of three layers that learned in bfloat16 as in float32, less than 7 % of the weights were stuck, and 11 %
# where the loss stayed twice as large.
MANY_STUCK = 0.1
FIRST_UPDATE = 16
MOST_OF_PARAMETER = 256

# Subclasses may have a step of their own.
_FUSED = frozenset({torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad})

_AS_IT_IS = nullcontext()

_log = logging.getLogger(__name__)


class Precision:
    """The number format that `training.precision` names, of a model on a device."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._dtype = _TRUE.get(name)
        self._mixed = _MIXED.get(name)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Bring a module to the device, in this format."""
        if self._dtype is not None:
            module.to(self._dtype) if self._dtype is not torch.float64 else module.double()
        if self._dtype is torch.float64:
            # Such as those of spectral layers, which `Module.double` leaves as they are.
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_complex():
                    tensor.data = tensor.data.to(torch.complex128)
        return module.to(self._device)

    def convert(self, data: Any) -> Any:
        """Bring the data of a batch to the device, in this format; where the source is pinned, without waiting."""
        if self._device.type == "cpu" and self._dtype is None:
            return data
        # Such as a PackedSequence, a tuple that knows what of it stays on the CPU.
        return mapped(self._convert, data, lambda value: callable(getattr(value, "to", None)))

    def forward_context(self) -> AbstractContextManager[Any]:
        """Within, forward passes are computed in this format."""
        if self._mixed is not None:
            return torch.autocast(self._device.type, dtype=self._mixed)
        return _AS_IT_IS if self._dtype is None else _default_dtype(self._dtype)

    def backward(self, loss: Tensor, **options: Any) -> None:
        loss.backward(**options)  # type: ignore[no-untyped-call]

    def unscale_gradients(self, optimizer: Any) -> None:
        """Take the scale of the loss out of the gradients of an optimizer, which its step would do."""

    def step(self, optimizer: Any, **options: Any) -> Any:
        return optimizer.step(**options)

    def step_if_finite(self, optimizer: Any, numbers: Sequence[Tensor]) -> list[float]:
        """Step, unless one of the `numbers` is not finite; gives them.

        A device is waited for before the step, or for an optimizer that skips it by itself once that is under way, and
        then for the numbers alone.
        """
        if not (_is_waited_for(numbers[0]) and _skips_by_itself(optimizer, numbers[0].device)):
            found = [number.item() for number in numbers]
            if all(map(isfinite, found)):
                self.step(optimizer)
            return found
        together = torch.stack([number.detach().reshape(()).to(numbers[0]) for number in numbers])
        # Behind the optimizer the device would come to it later.
        copied = together.to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(together.device).record_event() if together.is_cuda else None
        # x - x is 0, or NaN.
        optimizer.found_inf = (together - together).any().float()
        try:
            self.step(optimizer)
        finally:
            del optimizer.found_inf
        if event is not None:
            event.synchronize()
        return copied.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def _convert(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, self._dtype if value.is_floating_point() else None, non_blocking=True)
        return value.to(self._device) if hasattr(value, "to") else value


class Scaler(torch.amp.GradScaler):
    """Takes whole gradients and those of shards apart, which torch cannot unscale in one call."""

    def _unscale_grads_(self, optimizer: Any, *arguments: Any) -> Any:
        found: dict[Any, Any] = {}
        for is_spread in (False, True):
            parameters = [
                each
                for group in optimizer.param_groups
                for each in group["params"]
                if hasattr(each, "device_mesh") == is_spread
            ]
            found |= super()._unscale_grads_(SimpleNamespace(param_groups=[{"params": parameters}]), *arguments)  # type: ignore[arg-type]
        return found


class LossScaling(Precision):
    """16-mixed, in which the scale stays the same until all optimizers have used the gradients of a backward pass."""

    def __init__(self, device: torch.device, scaler: torch.amp.GradScaler) -> None:
        super().__init__("16-mixed", device)
        self._scaler = scaler
        self._has_stepped = False
        # A rank that has no batch before the first update would have no scale.
        scaler.scale(torch.zeros(1, device=device))

    @property
    def scale(self) -> float:
        """The factor by which the losses are multiplied."""
        return float(self._scaler.get_scale())

    def backward(self, loss: Tensor, **options: Any) -> None:
        self.update_scale()
        super().backward(self._scaler.scale(loss), **options)

    def unscale_gradients(self, optimizer: Any) -> None:
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Any, **options: Any) -> Any:
        """Step, unless the gradients of this optimizer are not finite."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("loss scaling and the LBFGS optimizer are not compatible")
        self._has_stepped = True
        return self._scaler.step(optimizer, **options)

    def step_if_finite(self, optimizer: Any, numbers: Sequence[Tensor]) -> list[float]:
        """Step in any case: the scaler learns of the overflow, and skips it."""
        self.step(optimizer)
        return [number.item() for number in numbers]

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)

    def update_scale(self) -> None:
        """All optimizers have been stepped: lower the scale if there was an overflow, or raise it now and then."""
        if self._has_stepped:
            self._scaler.update()
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
        if any(_is_short(parameter) for group in optimizer.param_groups for parameter in group["params"]):
            before_each_step(optimizer, self._before_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        num = self._num_steps[id(optimizer)] = self._num_steps.get(id(optimizer), 0) + 1
        if self.warning or num < FIRST_UPDATE or num & (num - 1):
            return
        now, before = _note(optimizer), self._noted.pop(id(optimizer), None)
        self._noted[id(optimizer)] = now
        if before is None or [weight.shape for weight in before.weights] != [weight.shape for weight in now.weights]:
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
            f'training.precision "{name}" needs a GPU, and this rank has none: '
            f'write "{_INSTEAD_ON_CPU[name]}" or "32-true"'
        )


def make_precision(name: str, device: torch.device) -> Precision:
    """The arithmetic that `training.precision` names.

    Raises:
        ConfigError: it needs a GPU.
    """
    check_precision(name, device)
    return LossScaling(device, Scaler(device.type)) if name == "16-mixed" else Precision(name, device)


@contextmanager
def numerics(settings: "TrainingSettings") -> Iterator[None]:
    """Within, torch computes as `training` says."""
    dtype, matmul_precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cublas = os.environ.get(_CUBLAS)
    if settings.precision == "64-true":
        # What the user's code makes by itself has 64 bits, too.
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


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _is_waited_for(number: Tensor) -> bool:
    """Whether to read it is to wait for a device: on the CPU it is there."""
    return not number.is_cpu


def _skips_by_itself(optimizer: Any, device: torch.device) -> bool:
    """Whether its step leaves weights and state, which are on this device, as they are where its `found_inf` is 1.

    torch's fused optimizers do, once they have a state: at its first step that of SGD would stay undefined. Code of the
    user's around it would be called for an update that is not made: hooks, beside one of ours, or a `step` of its own.
    """
    if type(optimizer) not in _FUSED or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False
    if len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks) > 1:
        return False
    own_step = vars(optimizer).get("step")
    if own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched"):
        return False
    return all(
        each.grad is None or (each.device == device and (group.get("momentum") == 0 or optimizer.state.get(each)))
        for group in optimizer.param_groups
        for each in group["params"]
    ) and all(group["fused"] for group in optimizer.param_groups)


def _is_short(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)


def _note(optimizer: torch.optim.Optimizer) -> _Noted:
    weights, had_gradient, rates = [], [], []
    for group in optimizer.param_groups:
        rates.append(float(group.get("lr", 0.0)))
        for parameter in group["params"]:
            if _is_short(parameter) and parameter.grad is not None and not parameter.grad.is_sparse and rates[-1]:
                # Of what is spread over the ranks, this one's part.
                own, gradient = (
                    each.to_local() if hasattr(each, "to_local") else each
                    for each in (parameter.detach(), parameter.grad)
                )
                stride = 1 + own.numel() // MOST_OF_PARAMETER
                weights.append(own.reshape(-1)[::stride].clone())
                had_gradient.append(gradient.reshape(-1)[::stride] != 0)
    return _Noted(weights, had_gradient, rates)
