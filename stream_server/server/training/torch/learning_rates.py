"""The learning rates of a TorchServer's optimizers."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stream_server.errors import UserCodeError
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.user.framework import LearningRateCallback
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.server.user.torch_server import TorchServer

# Updates in a row without a learning rate that are worth a warning.
MANY = 10
# A rate that is a smaller part of the one at the start leaves weights of 32 bits as they are.
VANISHING = 1e-8
# What a rate that has risen all the time should have reached, as a part of that of the optimizer.
RISEN = 0.1

_log = logging.getLogger(__name__)


class LearningRates(LearningRateCallback):
    """Steps the server's `lr_scheduler`, or each of several, and logs the rates whenever metrics are written.

    Schedulers take as many steps as `progress.lr_steps` has counted by `training.lr_clock`, with automatic optimisation
    and without, and at the end of the training those that are left of `progress.expected_lr_steps`; a
    ReduceLROnPlateau takes one step at each validation, with its loss. The rates that are logged are those of the last
    update.

    `warnings`, on rank 0: a schedule that has ended before the
    training, a rate of 0, or next to it, in `MANY` updates in a row, one that only rose and did not reach `RISEN`, an
    optimizer that took no step in so many, and a scheduler that was made and not returned, of which nobody has taken a
    step.
    """

    def __init__(self, server: "TorchServer") -> None:
        self.warnings: list[str] = []
        self._server = server
        self._num_updates = 0
        self._num_watched = 0
        self._num_without_rate = 0
        self._rise: tuple[float, float] | None = None
        self._rose_at = 0
        self._stepped: set[int] = set()
        self._hooks: dict[int, Any] = {}
        self._num_steps = 0
        self._used: list[float] = []
        self._used_by = 0
        self._at_start: list[float] = []
        self._told_of_forgotten = False
        self._epochs: list[tuple[Any, int]] = []

    def __call__(self, metrics: Metrics, /) -> None:
        """Log "lr", or "lr/0", "lr/1" and so on when there are several optimizers or groups of parameters."""
        is_stepped = self._used_by == self._server.progress.updates
        rates = self._used if self._used and is_stepped else self._rates()
        for number, rate in enumerate(rates):
            metrics.log("lr" if len(rates) == 1 else f"lr/{number}", rate)

    def on_train_start(self, server: "TorchServer") -> None:
        self._num_updates = server.progress.updates
        self._at_start = self._rates()
        for optimizer in as_list(server.optimizer):
            self._hooks[id(optimizer)] = before_each_step(optimizer, lambda own, *_: self._stepped.add(id(own)))
        num_steps, is_scheduled = server.progress.expected_lr_steps, any(map(_counts_updates, self._schedulers))
        has_ended = num_steps is not None and 0 < num_steps <= self._num_steps
        if is_scheduled and has_ended and server.progress.fraction != 1.0:
            rates = ", ".join(f"{rate:g}" for rate in self._rates())
            self._warn(
                f"the learning-rate schedule has ended: it took all of its {num_steps} steps, which is what the study "
                f"had when it began, and does not grow with it. What is still to come is trained at the last rate, "
                f"{rates}. For another schedule begin a new study that loads this one: "
                '"load": {"checkpoint": …, "what": "model+optimizer"}'
            )

    def on_step_end(self, server: "TorchServer") -> None:
        """Take the steps that are due.

        Raises:
            UserCodeError: somebody else has stepped a scheduler, too.
        """
        for own in self._stepped & self._hooks.keys():
            self._hooks.pop(own).remove()
        self._watch()
        schedulers = self._schedulers
        if schedulers:
            self._refuse_other_steps()
        progress = server.progress
        # Before the first update torch would warn, and nothing has been learned at the present rate.
        while progress.updates and self._num_steps < progress.lr_steps:
            for scheduler in filter(_counts_updates, schedulers):
                self._step(scheduler)
            self._num_steps += 1
        if schedulers:
            self._note_epochs()

    def on_train_end(self, server: "TorchServer") -> None:
        self.on_step_end(server)
        self._tell_of_forgotten()
        self._tell_of_warm_up()
        optimizers = as_list(server.optimizer)
        idle = [place for place, each in enumerate(optimizers) if _has_hooks(each) and id(each) not in self._stepped]
        # Without any step this rank had no batch.
        if self._stepped and idle and self._num_watched >= MANY:
            self._warn(
                f"of {len(optimizers)} optimizers, {', '.join(map(str, idle))} (counted from 0) took no step in the "
                f"last {self._num_watched} updates: step them in training_step, or leave them out"
            )
        if any(not _counts_updates(each) and each.last_epoch <= 1 for each in self._schedulers):
            self._warn(
                "the ReduceLROnPlateau took no step before the end: it takes one at each validation, so write "
                "validation.every_batches"
            )

    def on_validation_end(self, server: "TorchServer", metrics: dict[str, float]) -> None:
        for scheduler in self._schedulers:
            # There is no loss where some sets alone were validated.
            if not _counts_updates(scheduler) and "loss" in metrics:
                self._step(scheduler, metrics["loss"])
        self._note_epochs()

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_steps = state["num_steps"]

    @property
    def _schedulers(self) -> list[Any]:
        return as_list(self._server.lr_scheduler)

    def _watch(self) -> None:
        """Count the updates that were made without a rate; schedulers have taken no step since."""
        num_updates = self._server.progress.updates
        if num_updates == self._num_updates:
            return
        self._num_updates = num_updates
        self._num_watched += 1
        groups = [group for optimizer in as_list(self._server.optimizer) for group in optimizer.param_groups]
        parts = [float(group["lr"]) / float(group["initial_lr"]) for group in groups if group.get("initial_lr")]
        part = max(parts, default=RISEN)
        first, last = self._rise or (part, part)
        self._rose_at = self._num_watched if part > last else self._rose_at
        self._rise = (first, part) if part >= last else (RISEN, RISEN)
        is_trained = any(float(group["lr"]) > VANISHING * float(group.get("initial_lr", 0.0)) for group in groups)
        self._num_without_rate = 0 if is_trained else self._num_without_rate + 1
        if self._num_without_rate == MANY:
            rate = f"below {VANISHING:g} of the one at the start" if any(self._rates()) else "0"
            self._warn(
                f"the learning rate was {rate} in {MANY} updates, until batch {self._server.progress.batches}: what "
                "comes is trained without effect until it rises. A schedule should be as long as the training "
                "(self.expected_lr_steps), or end above 0"
            )

        if self._num_watched == MANY:
            self._tell_of_forgotten()

    def _tell_of_warm_up(self) -> None:
        """Warn of a rate that has only risen, and not far, as in a warm-up that is longer than the training."""
        first, last = self._rise or (RISEN, RISEN)
        is_rising = self._num_watched - self._rose_at < MANY
        if self._num_watched >= MANY and is_rising and first < last < RISEN:
            self._warn(
                f"the learning rate rose until the end, and reached {last:.2g} of that of the optimizer: the warm-up "
                f"of the schedule is longer than the training, which had {self._num_updates} updates. Make it a part "
                "of self.expected_lr_steps"
            )

    def _refuse_other_steps(self) -> None:
        now = self._schedulers
        for scheduler, epochs in self._epochs:
            if any(each is scheduler for each in now) and _epochs_of(scheduler) > epochs:
                owner = type(self._server).__name__
                raise UserCodeError(
                    f"the {type(scheduler).__name__} that {owner}.prepare_training_attributes returned is stepped by "
                    f"{owner} or a callback, too, so that it runs ahead: leave its step() out, since the study steps "
                    "it after each update, or as training.lr_clock says, and a ReduceLROnPlateau at each validation. "
                    "To step it yourself, keep it in an attribute and do not return it"
                )

    def _note_epochs(self) -> None:
        self._epochs = [(each, _epochs_of(each)) for each in self._schedulers]

    def _tell_of_forgotten(self) -> None:
        """Warn once of a scheduler that was made of the optimizer, and that neither the study nor the user steps."""
        if self._schedulers or self._told_of_forgotten or not self._num_watched:
            return
        own = as_list(self._server.optimizer)
        kept = [value for value in vars(self._server).values() if isinstance(value, LRScheduler)]
        # A scheduler replaces the step of its optimizer.
        is_made = bool(kept) or any(hasattr(each.step, "_wrapped_by_lr_sched") for each in own)
        if is_made and not any(map(_epochs_of, kept)) and self._rates() == self._at_start:
            self._told_of_forgotten = True
            name = f"{type(self._server).__name__}.prepare_training_attributes"
            self._warn(
                f"{name} makes a learning-rate scheduler and does not return it, and it has taken no step: the rate is "
                "what it was at the start. Write `return model, optimizer, lr_scheduler`"
            )

    def _warn(self, text: str) -> None:
        if self._server.rank == 0:
            self.warnings.append(text)
            _log.warning("%s", text)

    def _rates(self) -> list[float]:
        optimizers = as_list(self._server.optimizer)
        return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    def _step(self, scheduler: Any, *arguments: float) -> None:
        num_updates = self._server.progress.updates
        if self._used_by != num_updates:
            self._used, self._used_by = self._rates(), num_updates
        call_user(f"the lr_scheduler of {type(self._server).__name__}", scheduler.step, *arguments)


def _counts_updates(scheduler: Any) -> bool:
    return not isinstance(scheduler, ReduceLROnPlateau)


def _epochs_of(scheduler: Any) -> int:
    """The steps of a scheduler and of its parts so far, 0 if it does not count them."""
    parts = getattr(scheduler, "_schedulers", ())
    return int(getattr(scheduler, "last_epoch", 0)) + sum(map(_epochs_of, parts))


def before_each_step(optimizer: Any, hook: Callable[..., None]) -> Any:
    """Call `hook` with an optimizer before each of its steps, until what this gives is told to `remove` it.

    One that is not of torch's class has no hooks.
    """
    return optimizer.register_step_pre_hook(hook) if _has_hooks(optimizer) else None


def _has_hooks(optimizer: Any) -> bool:
    return hasattr(optimizer, "register_step_pre_hook")


def as_list(values: Any) -> list[Any]:
    """The elements of a list or tuple, or the one value there is; none for None."""
    if values is None:
        return []
    return list(values) if isinstance(values, tuple | list) else [values]
