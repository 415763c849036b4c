"""Manual optimisation on all ranks: `manual_backward`, the steps of the optimizers, and ranks that had no batch.

Why: docs/decisions/0034-manual-optimisation.md
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.gradients import Gradients
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.precision import LossScaling, Precision
from stream_server.server.training.torch.reduction import UnionGradients
from stream_server.server.training.torch.skipped_updates import SkippedUpdates
from stream_server.server.training.torch.state import plain, restored
from stream_server.server.training.torch.weights import other_modules
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings

_BACKWARD = "manual_backward"


class ManualOptimization:
    """Makes every `manual_backward` leave the gradients of the union batch, on all ranks that had a batch.

    So whatever `training_step` does with them, such as clipping them, adding them up over several batches or stepping
    one of several optimizers, it does on all of these ranks alike. A rank without a batch runs no user code: it joins
    the reductions with zeros, and before it next trains or evaluates it takes over all that another rank has learned.
    """

    at_boundary = True

    def __init__(
        self,
        server: TorchServer,
        ranks: Ranks,
        settings: "TrainingSettings",
        precision: Precision,
        union: UnionGradients,
        skipped: SkippedUpdates,
        warn: Callable[[str], None],
    ) -> None:
        self._server = server
        self._ranks = ranks
        self._precision = precision
        self._gradients = Gradients(server, settings, precision, union)
        self._union = union
        self._warn = warn
        self._in_backward = False
        self._in_step = False
        self._num_steps = 0
        self._behind: set[int] = set()
        self._newest = 0
        # Whether batches were trained since the last step of an optimizer.
        self._is_pending = False
        # Whether an optimizer has stepped twice with gradients that nobody has cleared in between.
        self._keeps_gradients = False
        self._stepped: set[int] = set()
        self._refuse_local_gradients()
        server.take_steps(self)
        for optimizer in as_list(server.optimizer):
            optimizer.step = MethodType(self._stepping(optimizer), optimizer)

    def joins(self) -> dict[str, Callable[[], None]]:
        """The part of a rank without a batch in each call of the others, by the name of the call."""
        steps = {_step_of(number): self._count_step for number in range(len(as_list(self._server.optimizer)))}
        return {_BACKWARD: self._join, **steps}

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Add to the gradients that of the union batch's mean loss."""
        union_mean, parameters = self._server.union_mean, self._union.named().values()
        self._note_cleared()
        if not union_mean.sizes:
            raise UserCodeError("manual_backward must be called in training_step: elsewhere nobody knows the batch")
        several = self._ranks.size > 1
        before = [parameter.grad for parameter in parameters] if several else []
        if several:
            self._union.clear()
        self._in_backward = True
        with self._without_autocast():
            self._precision.backward(loss * union_mean.share if several else loss, **options)
        self._in_backward = False
        if several:
            union_mean.announce(_BACKWARD)
            self._reduce()
            for parameter, gradient in zip(parameters, before, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _stepping(self, optimizer: Any) -> Callable[..., Any]:
        """A function that `training_step` calls in place of an optimizer's own step."""
        own = optimizer.step

        # Schedulers note at the step that they count it.
        @wraps(getattr(own, "__func__", own))
        def step(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            # The loss scaling calls it within our step.
            return own(*arguments, **options) if self._in_step else self._step(optimizer, *arguments, **options)

        return step

    def _step(self, optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Clip the gradients of an optimizer, and take its step; a closure's loss becomes that of the union batch."""
        server = self._server
        self._announce_step(optimizer)

        def evaluated() -> Any:
            # The weights have changed since, and autocast keeps what it has cast.
            torch.clear_autocast_cache()
            assert closure is not None
            with self._precision.forward_context():
                loss = closure()
            self._gradients.clip(optimizer)
            return server.all_reduce(loss.detach()) if isinstance(loss, Tensor) and self._ranks.size > 1 else loss

        self._in_step = True
        with self._without_autocast():
            if closure is None:
                self._gradients.clip(optimizer)
                result = self._precision.step(optimizer)
            else:
                result = self._precision.step(optimizer, closure=evaluated)
        self._in_step = False
        torch.clear_autocast_cache()
        return result

    def call(self, training_step: Callable[[], Any]) -> Any:
        """There is nothing to watch: the gradients are those of the user's code."""
        return training_step()

    def run(self, union_batch: UnionBatch, forward: Callable[[], Tensor | None]) -> StepOutcome:
        """Train on the union batch; `forward` gives this rank's loss, None if it has none."""
        self.catch_up(union_batch)
        loss = forward()
        self._behind |= {rank for rank, size in enumerate(union_batch.sizes) if not size}
        self._newest = union_batch.lowest_rank
        has_stepped, self._num_steps = self._num_steps > 0, 0
        self._is_pending = not has_stepped
        if self._keeps_gradients:
            self._warn(
                f"{type(self._server).__name__}.training_step steps an optimizer twice without clearing its gradients "
                "in between, so that each step takes those of all batches before: call its zero_grad() before "
                "manual_backward, or after step()"
            )
        if isinstance(self._precision, LossScaling):
            self._precision.update_scale()
        return StepOutcome(loss=None if loss is None else loss.item(), updated=has_stepped)

    def finish(self) -> StepOutcome | None:
        """Tell of gradients that no step has used, which are in no checkpoint."""
        return StepOutcome(skipped=True) if self._is_pending else None

    def catch_up(self, union_batch: UnionBatch | None = None) -> None:
        """Give ranks that had no batch what the others have learned, if one of them has one now. Collective."""
        if not self._behind or (union_batch is not None and not any(union_batch.sizes[rank] for rank in self._behind)):
            return
        own = f"{type(self._server).__name__}.state_dict"
        state = call_user(own, lambda: to_bytes(self._state())) if self._ranks.rank == self._newest else b""
        received = self._ranks.broadcast_bytes(state, self._newest)
        if self._ranks.rank in self._behind:
            self._load(restored(from_bytes(received)))
        self._behind.clear()

    def _announce_step(self, optimizer: Any) -> None:
        numbers = [number for number, each in enumerate(as_list(self._server.optimizer)) if each is optimizer]
        self._note_cleared()
        self._keeps_gradients |= not self._stepped.isdisjoint(numbers)
        self._stepped.update(numbers)
        self._server.union_mean.announce(_step_of(*numbers))
        self._count_step()

    def _note_cleared(self) -> None:
        """Forget the steps of optimizers whose gradients were cleared since; one at 0 is taken for one of them."""
        optimizers = as_list(self._server.optimizer)
        for number in [*self._stepped]:
            parameters = [each for group in optimizers[number].param_groups for each in group["params"]]
            gradient = next((each.grad for each in parameters if each.grad is not None), None)
            if gradient is None or not (gradient.coalesce().values() if gradient.is_sparse else gradient).any():
                self._stepped.discard(number)

    def _count_step(self) -> None:
        """A rank without a batch takes over the outcome later."""
        self._num_steps += 1

    def _join(self) -> None:
        self._union.clear()
        self._reduce()
        self._union.clear()

    def _reduce(self) -> None:
        with self._server.phases.measure("all_reduce"):
            self._union.reduce(self._union.named(), [], self._server.union_mean.sizes)

    def _state(self) -> dict[str, Any]:
        server = self._server
        named = self._union.named()
        of_model = set(map(id, server.model.parameters()))
        return {
            "model": plain(server.model.state_dict(), "the model"),
            "others": [plain(each, name) for name, each in named.items() if id(each) not in of_model],
            "modules": {name: plain(module.state_dict(), name) for name, module in other_modules(server).items()},
            "optimizers": [plain(each.state_dict(), "the optimizer") for each in as_list(server.optimizer)],
            "precision": plain(self._precision.state_dict(), "the precision"),
            "trained": [each.requires_grad for each in named.values()],
            "gradients": [None if each.grad is None else plain(each.grad, name) for name, each in named.items()],
            "server": plain(server.state_dict(), "state_dict"),
        }

    def _load(self, state: dict[str, Any]) -> None:
        server = self._server
        of_model = set(map(id, server.model.parameters()))
        server.model.load_state_dict(state["model"])
        modules = other_modules(server)
        for name in modules.keys() & state["modules"].keys():
            modules[name].load_state_dict(state["modules"][name])
        for optimizer, its_state in zip(as_list(server.optimizer), state["optimizers"], strict=True):
            optimizer.load_state_dict(its_state)
        self._precision.load_state_dict(state["precision"])
        others = iter(state["others"])
        parameters = self._union.named().values()
        for parameter, trained, gradient in zip(parameters, state["trained"], state["gradients"], strict=True):
            if id(parameter) not in of_model:
                parameter.data.copy_(next(others))
            parameter.requires_grad_(trained)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        # Whether the others have cleared what they give is not known here.
        self._stepped.clear()
        call_user(f"{type(server).__name__}.load_state_dict", server.load_state_dict, state["server"])

    def _refuse_local_gradients(self) -> None:
        """Refuse gradients that are of this rank's batch alone."""
        for parameter in self._union.named().values():
            if not is_lazy(parameter):
                trained = parameter.requires_grad
                register: Callable[..., Any] = parameter.requires_grad_().register_post_accumulate_grad_hook
                register(self._check)
                parameter.requires_grad_(trained)

    def _check(self, _: Tensor) -> None:
        if not self._in_backward:
            raise UserCodeError(
                f"{type(self._server).__name__} must call self.manual_backward(loss) for loss.backward(), which gives "
                "the gradient of one rank's batch only"
            )

    def _without_autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._server.device.type, enabled=False)


def _step_of(*numbers: int) -> str:
    return f"a step of optimizer {', '.join(map(str, numbers))}"
