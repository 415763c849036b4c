"""Automatic optimisation: backward pass, union gradient and update from the loss that `training_step` returns."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

import stream_server
from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.gradients import Gradients
from stream_server.server.training.torch.learning_rates import as_list, before_each_step
from stream_server.server.training.torch.precision import LossScaling, Precision
from stream_server.server.training.torch.reduction import UnionGradients, clear
from stream_server.server.training.torch.skipped_updates import SkippedUpdates
from stream_server.server.user.torch_server import TorchServer
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings


class Reader(Enum):
    """The code that reads a gradient; the value says what it does."""

    CLIPPING = "clips gradients"
    SCALER = "scales its loss by a GradScaler"
    USER = "reads the gradient of a parameter"


_ALONE = nullcontext()
# Of what is installed beside torch, and of ours: to clear gradients that are none does no harm.
_FOLDERS = (str(Path(torch.__file__).parents[1]), str(Path(stream_server.__file__).parent))


@contextmanager
def watch_reads(parameters: Iterable[Tensor], tell: Callable[[Reader], None]) -> Iterator[None]:
    """Within, `tell` hears of each read of the gradient of one of these, and of each loss that is scaled.

    Reads of installed packages do not count, apart from clipping.
    """
    ids = set(map(id, parameters))
    gradient: Any = Tensor.grad
    scale = torch.amp.GradScaler.scale

    def read(parameter: Tensor) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if id(parameter) in ids and (file == clip_grad.__file__ or not file.startswith(_FOLDERS)):
            tell(Reader.CLIPPING if file == clip_grad.__file__ else Reader.USER)
        return gradient.__get__(parameter)

    def scaled(scaler: Any, outputs: Any) -> Any:
        if scaler.is_enabled():
            tell(Reader.SCALER)
        return scale(scaler, outputs)

    nn.Parameter.grad = property(read, gradient.__set__, gradient.__delete__)  # type: ignore[assignment]
    torch.amp.GradScaler.scale = scaled  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del nn.Parameter.grad
        torch.amp.GradScaler.scale = scale  # type: ignore[method-assign]


class AutomaticOptimization:
    """Makes the updates of a model on all ranks as one rank would on the union batch.

    `training_step` returns a mean over n samples. With N samples in all in an update, the sum of the ranks' gradients
    of n / N × loss is the gradient of the union's mean loss, whatever the n. When updates accumulate, N is known only
    at the end: then n × loss is backpropagated and the gradients are scaled by 1 / N once. A batch that
    `training_step` skips has no part in n and N.
    """

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
        self._settings = settings
        self._precision = precision
        self._gradients = Gradients(server, settings, precision, union)
        self._union = union
        self._skipped = skipped
        self._warn = warn
        self._is_in_training_step = False
        self._has_watched_reads = False
        self._num_accumulated = 0
        self._num_planned = 0
        self._num_learned = 0
        self._num_first_left_out = 0
        self._num_not_finite = 0
        self._sizes: tuple[int, ...] = ()
        self._name = f"{type(server).__name__}.training_step"
        for optimizer in as_list(server.optimizer):
            before_each_step(optimizer, self._refuse_own_step)

    @property
    def at_boundary(self) -> bool:
        return self._num_accumulated == 0

    def joins(self) -> None:
        """Nothing: a rank without a batch takes part in the update."""

    def call(self, training_step: Callable[[], Any]) -> Any:
        """Notice a `training_step` that optimises itself, or reads gradients that are yet to be made."""
        self._is_in_training_step = True
        if self._has_watched_reads:
            returned = training_step()
        else:
            # Reading takes notice in the first batch alone.
            self._has_watched_reads = True
            with watch_reads(self._union.named().values(), self._judge_read):
                returned = training_step()
        self._is_in_training_step = False
        return returned

    def run(self, union_batch: UnionBatch, forward: Callable[[], Tensor | None]) -> StepOutcome:
        """Train on the union batch; `forward` gives this rank's loss, None if it has none."""
        had_gradient = self._has_gradient
        if had_gradient and self.at_boundary:
            # What a callback has backpropagated since is no part of the update.
            clear(self._union.named().values())
            had_gradient = False
        self._num_planned += union_batch.num_samples
        self._num_accumulated += 1
        self._sizes = union_batch.sizes
        with self._union.together(learns=True, calls=union_batch.own is not None):
            loss = forward()
            if self._has_gradient != had_gradient and not self._union.has_served:
                raise self._optimizes_itself("clears the gradients" if had_gradient else "backpropagates")
            if union_batch.own is not None and loss is None:
                self._num_first_left_out += union_batch.own.num_first
            elif union_batch.own is not None:
                self._skipped.note_batch(union_batch.own.keys)
                self._num_learned += union_batch.own.size
                call_user(f"the backward pass of {self._name}", self._backward, loss, union_batch)
        is_last = self._num_accumulated == self._settings.accumulate
        return self._update(loss) if is_last else StepOutcome(loss=self._value_of(loss), updated=False)

    def finish(self) -> StepOutcome | None:
        """End an accumulation that is under way with an update."""
        return None if self.at_boundary else self._update(None)

    def catch_up(self) -> None:
        """Nothing: no rank stays behind."""

    @property
    def _has_gradient(self) -> bool:
        """Whether a parameter of the optimizer has a gradient."""
        for group in self._server.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return True
        return False

    def _judge_read(self, reader: Reader) -> None:
        if self._num_accumulated == 1 and self._has_gradient:
            raise self._optimizes_itself("backpropagates")
        too_early = (
            f"{self._name} {reader.value}, but the study makes the gradients of its loss, once that is returned: "
        )
        by_hand = "or do it in on_gradients, once they are those of all ranks"
        match reader:
            case Reader.CLIPPING:
                advice = "leave it out and set training.clip_norm or training.clip_value in study.json, "
                raise UserCodeError(f"{too_early}{advice}{by_hand}")
            case Reader.SCALER:
                advice = "return the loss itself, and leave the scaling to training.precision 16-mixed in study.json"
                raise UserCodeError(f"{too_early}{advice}")
            case Reader.USER:
                advice = "it is None, or that of earlier batches. The norm of all is logged as grad/norm, and "
                advice += "torch.autograd.grad gives a gradient within the loss; "
                self._warn(f"{too_early}{advice}{by_hand}")

    def _backward(self, loss: Tensor, union_batch: UnionBatch) -> None:
        assert union_batch.own is not None
        weight = float(union_batch.own.size)
        if self._settings.accumulate == 1:
            weight /= union_batch.num_samples
        self._union.begin_backward()
        with self._server.phases.measure("backward"):
            self._precision.backward(loss * weight if weight != 1 else loss)

    def _value_of(self, loss: Tensor | None) -> float | None:
        """The number that the loss of a batch is."""
        if loss is None:
            return None
        value: float = loss.item()
        self._num_not_finite += not isfinite(value)
        return value

    def _update(self, loss: Tensor | None) -> StepOutcome:
        server = self._server
        scaling = self._precision if isinstance(self._precision, LossScaling) else None
        named = self._union.named()
        # To read the loss is to wait for the device: where nobody asks for it before, it is read with the norm.
        is_asked = self._ranks.size > 1 or scaling is not None or server.tell_gradients is not None
        unread = [] if loss is None or is_asked or not self._has_gradient else [loss]
        value = None if unread else self._value_of(loss)
        with server.phases.measure("all_reduce") if self._ranks.size > 1 else _ALONE:
            numbers = [self._num_learned, self._num_first_left_out, self._num_not_finite]
            sums = self._union.reduce(named, numbers, self._sizes)
        num_learned, num_left_out, num_not_finite = map(int, sums)
        weight = (self._num_planned if self._settings.accumulate == 1 else 1) / max(num_learned, 1)
        if num_not_finite:
            # The mean over an empty mask is NaN, and its gradient 0: the optimizer would go on by its momentum.
            weight = nan
        self._num_accumulated = self._num_planned = self._num_learned = 0
        self._num_first_left_out = self._num_not_finite = 0
        if not num_learned:
            return StepOutcome(loss=value, skipped=True)
        if not self._has_gradient:
            clear(named.values())
            self._skipped.judge(
                server.progress.batches, "reaches no parameter of the optimizer, which must have those of the model"
            )
            return StepOutcome(loss=value, skipped=True)
        with server.phases.measure("optimizer"):
            norm = self._gradients.prepare(named.values(), weight)
            is_excused = scaling is not None and scaling.scale > 1 and not self._gradients.fault
            name = f"the optimizer of {type(server).__name__}"
            found = call_user(name, self._precision.step_if_finite, server.optimizer, [norm, *unread])
            if scaling is not None:
                scaling.update_scale()
            clear(named.values())
        if unread:
            value = found[1]
            num_not_finite += not isfinite(value)
        fault = "is that of a loss that is not finite" if num_not_finite else self._gradients.fault or "is not finite"
        is_finite = all(map(isfinite, found))
        self._skipped.judge(server.progress.batches, "" if is_finite else fault, is_excused=is_excused)
        return StepOutcome(
            loss=value,
            skipped=not is_finite,
            num_left_out=num_left_out,
            gradient_norm=found[0] if is_finite else None,
        )

    def _refuse_own_step(self, *_: Any) -> None:
        if self._is_in_training_step:
            raise self._optimizes_itself("steps its optimizer")

    def _optimizes_itself(self, what: str) -> UserCodeError:
        return UserCodeError(
            f"{self._name} {what} itself, but automatic_optimization is True, so that the study does it with the loss "
            "that is returned: leave zero_grad, backward and step out and return the loss, or set "
            "automatic_optimization = False in the class and call self.manual_backward(loss) for loss.backward(). For "
            "a gradient within the loss there is torch.autograd.grad"
        )
