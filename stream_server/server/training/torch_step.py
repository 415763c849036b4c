"""The training step of a TorchServer: the exact gradient of the union of all ranks' batches."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks import Ranks
from stream_server.server.torch_server import TorchServer
from stream_server.server.torch_state import set_torch_random_states, torch_random_states
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.lockstep import Turn
from stream_server.server.training.skipped import SkippedUpdates
from stream_server.server.training.step import StepOutcome
from stream_server.server.training.torch_devices import (
    backend_of,
    device_of,
    devices_of_node,
    keep_freed_memory,
    limit_threads,
)
from stream_server.server.training.torch_fabric import launch
from stream_server.server.training.torch_gradients import Gradients
from stream_server.server.training.torch_group import TorchGroup
from stream_server.server.training.torch_lightning import Precision
from stream_server.server.training.torch_model import load_state, set_up, state_of
from stream_server.server.training.torch_precision import LossScaling, make_precision, numerics
from stream_server.server.training.torch_union import UnionStrategy

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


class TorchStep:
    """Trains a model on Lightning Fabric as one rank would on the union batch.

    `training_step` returns a mean over n samples. With N samples in all in an update of R ranks, DDP's mean of the
    gradients of n R / N × loss is the gradient of the union's mean loss, whatever the n. When updates accumulate,
    N is known only at the end: then n × loss is backpropagated and the gradients are scaled by R / N once.

    The phases it measures are forward, backward, optimizer and, for the waiting of ranks without a batch and the
    sharing of module buffers, all_reduce; DDP's own reductions overlap with backward and are part of it.
    `precision` is used instead of the plugin that `training.precision` names.
    """

    def __init__(
        self, server: TorchServer, ranks: Ranks, config: "StudyConfig", *, precision: Precision | None = None
    ) -> None:
        settings = config.training
        self._server = server
        self._ranks = ranks
        self._settings = settings
        self._seed = config.study.seed
        self._interface = config.network.interface
        self._device = device_of(ranks)
        self._precision = precision or make_precision(settings.precision, self._device)
        self._scaling = self._precision if isinstance(self._precision, LossScaling) else None
        self._gradients = Gradients(server, settings, self._scaling)
        self._skipped = SkippedUpdates(most_in_row=0 if settings.nonfinite == "stop" else settings.max_nonfinite)
        self._stack = ExitStack()
        self._union: UnionStrategy | None = None
        self._num_accumulated = 0
        self._num_samples = 0
        self._buffers_from = 0
        self.needs_every_rank = not server.automatic_optimization
        self._refuse_other_strategies()
        self._refuse_what_manual_optimisation_ignores()

    @property
    def at_boundary(self) -> bool:
        return self._num_accumulated == 0

    def __enter__(self) -> "TorchStep":
        limit_threads(self._server.num_threads)
        if self._device.type == "cpu":
            keep_freed_memory()
        with ExitStack() as stack:
            backend = backend_of(self._ranks)
            group = stack.enter_context(TorchGroup(self._ranks, backend=backend, interface=self._interface))
            stack.enter_context(numerics(self._settings))
            if self._ranks.size > 1:
                self._union = UnionStrategy(group.environment, devices_of_node(self._ranks))
            fabric = launch(self._ranks, group.environment, self._device, self._precision, self._union)
            torch.manual_seed(self._seed)
            set_up(self._server, fabric, compiled=self._settings.compile)
            # The same seed made the same weights on all ranks; noise, such as dropout, differs from here on.
            torch.manual_seed(self._seed + 1 + self._ranks.rank)
            if self._union:
                # DDP sums in another order after its first pass; two empty ones make a restart go on bit by bit.
                self._union.share_buffers(0)
                self._union.empty_pass()
                self._union.empty_pass()
                self._server.model.zero_grad()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def place(self, data: Any) -> Any:
        # Asking Fabric costs 40 µs a batch even when there is nothing to move.
        return data if self._device.type == "cpu" else self._server.fabric.to_device(data)

    def run(self, turn: Turn, data: Any, batch_idx: int) -> StepOutcome:
        self._buffers_from = turn.lowest_rank
        if not self._server.automatic_optimization:
            return self._run_manually(turn, data, batch_idx)
        self._num_samples += turn.num_samples
        self._num_accumulated += 1
        is_last = self._num_accumulated == self._settings.accumulate
        with self._union.accumulating(not is_last) if self._union else nullcontext():
            loss = self._forward(turn, data, batch_idx)
            if turn.batch is not None:
                self._skipped.note_batch(turn.batch.keys)
                call_user(f"the backward pass of {self._name}", self._backward, self._scalar(loss), turn)
            elif is_last:
                self._reduce_nothing()
        value = None if loss is None else loss.item()
        return self._update(value) if is_last else StepOutcome(loss=value, updated=False)

    def finish(self) -> StepOutcome | None:
        self.unite()
        if self.at_boundary:
            return None
        self._reduce_nothing()
        return self._update(None)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.unite()
        modes = [(module, module.training) for module in self._server.model.modules()]
        self._server.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training

    def unite(self) -> None:
        if self._union:
            with self._measure("all_reduce"):
                self._union.share_buffers(self._buffers_from)

    def state_dict(self) -> dict[str, Any]:
        scaler = {} if self._scaling is None else self._scaling.state_dict()
        return {**state_of(self._server), "scaler": scaler, "skipped": self._skipped.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_state(self._server, state)
        self._skipped.load_state_dict(state["skipped"])
        if self._scaling is not None and state["scaler"]:
            self._scaling.load_state_dict(state["scaler"])

    def random_state(self) -> dict[str, Any]:
        states: dict[str, Any] = torch_random_states()
        return states

    def load_random_state(self, state: dict[str, Any]) -> None:
        set_torch_random_states(state)

    @property
    def _name(self) -> str:
        return f"{type(self._server).__name__}.training_step"

    def _measure(self, name: str) -> AbstractContextManager[None]:
        return self._server.phases.measure(name)

    def _run_manually(self, turn: Turn, data: Any, batch_idx: int) -> StepOutcome:
        loss = self._forward(turn, data, batch_idx)
        if self._scaling is not None:
            self._scaling.settle()
        return StepOutcome(loss=None if loss is None else self._scalar(loss).item())

    def _forward(self, turn: Turn, data: Any, batch_idx: int) -> Any:
        """What `training_step` returns; None on a rank without a batch, which joins the calls of the others."""
        server, is_idle = self._server, turn.batch is None
        with self._measure("all_reduce" if is_idle else "forward"), server.union_mean.step(turn.sizes):
            return None if is_idle else call_user(self._name, server.training_step, data, batch_idx)

    def _backward(self, loss: Tensor, turn: Turn) -> None:
        assert turn.batch is not None
        weight = float(turn.batch.size)
        if self._settings.accumulate == 1:
            weight *= self._ranks.size / turn.num_samples
        with self._measure("backward"):
            self._server.fabric.backward(loss * weight if weight != 1 else loss)

    def _reduce_nothing(self) -> None:
        """Take part in the other ranks' backward pass."""
        if self._union:
            with self._measure("all_reduce"):
                self._union.empty_pass()

    def _update(self, loss: float | None) -> StepOutcome:
        server, scaling = self._server, self._scaling
        weight = 1.0 if self._settings.accumulate == 1 else self._ranks.size / self._num_samples
        self._num_accumulated = self._num_samples = 0
        with self._measure("optimizer"):
            norm = self._gradients.prepare(weight)
            is_excused = scaling is not None and scaling.scale > 1
            # With loss scaling the optimizer is asked in any case: the scaler learns of the overflow, and skips it.
            if isfinite(norm) or scaling is not None:
                call_user(f"the optimizer of {type(server).__name__}", server.optimizer.step)
            if scaling is not None:
                scaling.settle()
            server.optimizer.zero_grad()
        self._skipped.judge(server.progress.batches, is_finite=isfinite(norm), is_excused=is_excused)
        if isfinite(norm):
            server.log("grad/norm", norm)
        return StepOutcome(loss=loss, skipped=not isfinite(norm))

    def _scalar(self, loss: Any) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
            text = f"{self._name} must return the mean loss of its batch, a tensor of one element, not {found}"
            raise UserCodeError(text)
        return loss

    def _refuse_other_strategies(self) -> None:
        if self._settings.strategy != "ddp":
            lack = "needs GPUs, and there is none here" if self._device.type == "cpu" else "is not supported yet"
            raise ConfigError(f'training.strategy "{self._settings.strategy}" {lack}: write "ddp"')

    def _refuse_what_manual_optimisation_ignores(self) -> None:
        if self._server.automatic_optimization:
            return
        settings = self._settings
        if self._ranks.size > 1 and settings.uneven != "stop":
            raise ConfigError(
                "training.uneven must be stop for a server with automatic_optimization = False on several ranks: "
                "a rank whose data has ended could not take part in the steps of the others"
            )
        if settings.accumulate != 1 or settings.clip_norm is not None or settings.clip_value is not None:
            raise ConfigError(
                "training.accumulate, training.clip_norm and training.clip_value must be left out for a server with "
                "automatic_optimization = False: it steps its optimizers itself"
            )
