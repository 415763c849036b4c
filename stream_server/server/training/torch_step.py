"""The training step of a TorchServer: the exact gradient of the union of all ranks' batches."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks import Ranks
from stream_server.server.torch_server import TorchServer
from stream_server.server.torch_state import plain, restored, set_torch_random_states, torch_random_states
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.lockstep import Turn
from stream_server.server.training.step import StepOutcome
from stream_server.server.training.torch_group import TorchGroup, keep_freed_memory, limit_threads
from stream_server.server.training.torch_union import UnionStrategy

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

_log = logging.getLogger(__name__)


class TorchStep:
    """Trains a model on Lightning Fabric as one rank would on the union batch.

    `training_step` returns a mean over n samples. With N samples in all in an update of R ranks, DDP's mean of the
    gradients of n R / N × loss is the gradient of the union's mean loss, whatever the n. When updates accumulate,
    N is known only at the end: then n × loss is backpropagated and the gradients are scaled by R / N once.
    """

    def __init__(self, server: TorchServer, ranks: Ranks, config: "StudyConfig") -> None:
        self._server = server
        self._ranks = ranks
        self._settings = config.training
        self._seed = config.study.seed
        self._interface = config.network.interface
        self._stack = ExitStack()
        self._union: UnionStrategy | None = None
        self._num_accumulated = 0
        self._num_samples = 0
        self._buffers_from = 0
        self.needs_every_rank = not server.automatic_optimization
        self._refuse_what_manual_optimisation_ignores()

    @property
    def at_boundary(self) -> bool:
        return self._num_accumulated == 0

    def __enter__(self) -> "TorchStep":
        limit_threads(self._ranks)
        device = _device(self._ranks)
        if device.type == "cpu":
            keep_freed_memory()
        shared = device.type == "cuda" and self._ranks.local_size > torch.cuda.device_count()
        backend = "nccl" if device.type == "cuda" and not shared else "gloo"
        with ExitStack() as stack:
            group = stack.enter_context(TorchGroup(self._ranks, backend=backend, interface=self._interface))
            if self._settings.precision == "64-true":
                # Fabric gives a model's output back in the default dtype: the loss would be taken in 32 bits.
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
            self._set_up(self._fabric(group, device))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def place(self, data: Any) -> Any:
        # Asking Fabric costs 40 µs a batch even when there is nothing to move.
        return data if self._server.fabric.device.type == "cpu" else self._server.fabric.to_device(data)

    def run(self, turn: Turn, data: Any, batch_idx: int) -> StepOutcome:
        server = self._server
        self._buffers_from = turn.lowest_rank
        self._num_samples += turn.num_samples
        self._num_accumulated += 1
        last = self._num_accumulated == self._settings.accumulate
        with self._union.accumulating(not last) if self._union else nullcontext():
            with server.union_mean.step(turn.sizes):
                name = f"{type(server).__name__}.training_step"
                loss = None if turn.batch is None else call_user(name, server.training_step, data, batch_idx)
            if not server.automatic_optimization:
                self._num_accumulated = 0
                return StepOutcome(loss=None if loss is None else _scalar(name, loss).item())
            if turn.batch is not None:
                call_user(f"the backward pass of {name}", self._backward, _scalar(name, loss), turn)
            elif last and self._union:
                self._union.empty_pass()
        value = None if loss is None else loss.item()
        return self._update(value) if last else StepOutcome(loss=value, updated=False)

    def finish(self) -> StepOutcome | None:
        self.unite()
        if self.at_boundary:
            return None
        if self._union:
            self._union.empty_pass()
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

    def validated(self, metrics: dict[str, float]) -> None:
        for scheduler in _as_list(self._server.lr_scheduler):
            if isinstance(scheduler, ReduceLROnPlateau) and "loss" in metrics:
                scheduler.step(metrics["loss"])

    def unite(self) -> None:
        if self._union:
            self._union.share_buffers(self._buffers_from)

    def state_dict(self) -> dict[str, Any]:
        server = self._server
        return {
            "model": plain(server.model.state_dict(), "the model"),
            "optimizers": [plain(it.state_dict(), "the optimizer") for it in _as_list(server.optimizer)],
            "schedulers": [plain(it.state_dict(), "the lr_scheduler") for it in _as_list(server.lr_scheduler)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        server, saved = self._server, restored(state)
        try:
            server.model.load_state_dict(saved["model"])
            for part, own in (("optimizers", server.optimizer), ("schedulers", server.lr_scheduler)):
                for it, its_state in zip(_as_list(own), saved[part], strict=True):
                    it.load_state_dict(its_state)
        except (RuntimeError, ValueError, KeyError) as error:
            name = f"{type(server).__name__}.prepare_training_attributes"
            text = f"{name} makes something else than what was saved: {error}"
            raise UserCodeError(f"{text}. Make the same as before, or start over with --fresh") from error

    def random_state(self) -> dict[str, Any]:
        states: dict[str, Any] = torch_random_states()
        return states

    def load_random_state(self, state: dict[str, Any]) -> None:
        set_torch_random_states(state)

    def _refuse_what_manual_optimisation_ignores(self) -> None:
        if self._server.automatic_optimization:
            return
        settings = self._settings
        if self._ranks.size > 1 and settings.uneven != "stop":
            raise ConfigError(
                "training.uneven must be stop for a server with automatic_optimization = False on several ranks: "
                "a rank whose data has ended could not take part in the steps of the others"
            )
        if settings.accumulate != 1 or settings.clip_norm is not None:
            raise ConfigError(
                "training.accumulate and training.clip_norm must be left out for a server with "
                "automatic_optimization = False: it steps its optimizers itself"
            )

    def _fabric(self, group: TorchGroup, device: torch.device) -> Fabric:
        ranks = self._ranks
        if ranks.size == 1:
            # The environment is given here too: left to itself, Fabric asks MPI for one.
            fabric = Fabric(
                accelerator=device.type,
                devices=1,
                precision=self._settings.precision,
                plugins=[group.environment],
            )
        else:
            self._union = UnionStrategy(group.environment, _devices_of_node(ranks))
            fabric = Fabric(
                accelerator=device.type,
                devices=ranks.local_size,
                num_nodes=ranks.num_nodes,
                strategy=self._union,
                precision=self._settings.precision,
            )
        fabric.launch()
        return fabric

    def _set_up(self, fabric: Fabric) -> None:
        server = self._server
        server.fabric = fabric
        torch.manual_seed(self._seed)
        name = f"{type(server).__name__}.prepare_training_attributes"
        made = call_user(name, server.prepare_training_attributes)
        if not isinstance(made, tuple | list) or len(made) not in (2, 3):
            raise UserCodeError(f"{name} must return model, optimizer or model, optimizer, lr_scheduler")
        model, optimizers, server.lr_scheduler = [*made, None][:3]
        several = isinstance(optimizers, tuple | list)
        if several and server.automatic_optimization:
            raise UserCodeError(f"{name} returned several optimizers, which needs automatic_optimization = False")
        server.model, *wrapped = fabric.setup(model, *_as_list(optimizers))
        server.optimizer = wrapped if several else wrapped[0]
        # The same seed made the same weights on all ranks; noise, such as dropout, differs from here on.
        torch.manual_seed(self._seed + 1 + self._ranks.rank)
        if self._union:
            # DDP sums in another order after its first pass; two empty ones make a restart go on bit by bit.
            self._union.share_buffers(0)
            self._union.empty_pass()
            self._union.empty_pass()
            server.model.zero_grad()

    def _backward(self, loss: Tensor, turn: Turn) -> None:
        assert turn.batch is not None
        weight = float(turn.batch.size)
        if self._settings.accumulate == 1:
            weight *= self._ranks.size / turn.num_samples
        self._server.fabric.backward(loss * weight if weight != 1 else loss)

    def _update(self, loss: float | None) -> StepOutcome:
        server = self._server
        gradients = [parameter.grad for parameter in server.model.parameters() if parameter.grad is not None]
        if self._settings.accumulate != 1:
            torch._foreach_mul_(gradients, self._ranks.size / self._num_samples)
        self._num_accumulated = self._num_samples = 0
        finite = self._clip_and_check(gradients)
        if finite:
            call_user(f"the optimizer of {type(server).__name__}", server.optimizer.step)
            if server.lr_scheduler is not None and not isinstance(server.lr_scheduler, ReduceLROnPlateau):
                server.lr_scheduler.step()
        server.optimizer.zero_grad()
        return StepOutcome(loss=loss, skipped=not finite)

    def _clip_and_check(self, gradients: Sequence[Tensor]) -> bool:
        """Clip, and say whether all gradients are finite; the same on all ranks, since they are reduced."""
        server, settings = self._server, self._settings
        if settings.clip_norm is not None:
            size = server.fabric.clip_gradients(
                server.model, server.optimizer, max_norm=settings.clip_norm, error_if_nonfinite=False
            )
        else:
            size = torch.stack([gradient.sum().float() for gradient in gradients]).sum() if gradients else None
        if size is None or isfinite(size):
            return True
        text = f"the gradient of batch {server.progress.batches} is not finite"
        if settings.nonfinite == "stop":
            raise UserCodeError(f"{text}, and training.nonfinite is stop")
        _log.warning("%s: the update is skipped", text)
        return False


def _device(ranks: Ranks) -> torch.device:
    return _devices_of_node(ranks)[ranks.local_rank]


def _devices_of_node(ranks: Ranks) -> list[torch.device]:
    """The device of each rank of this node; ranks share GPUs when there are fewer."""
    if not torch.cuda.is_available():
        return [torch.device("cpu")] * ranks.local_size
    return [torch.device("cuda", rank % torch.cuda.device_count()) for rank in range(ranks.local_size)]


def _as_list(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, tuple | list) else [values]


def _scalar(name: str, loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
        raise UserCodeError(f"{name} must return the mean loss of its batch, a tensor of one element, not {found}")
    return loss
