"""The learning rates of a TorchServer's optimizers."""

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.server.metrics.metrics import Metrics
from stream_server.server.user.framework import LearningRateCallback
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.server.user.torch_server import TorchServer


class LearningRates(LearningRateCallback):
    """Steps the server's `lr_scheduler`, or each of several, and logs the rates whenever metrics are written.

    Schedulers take as many steps as `progress.lr_steps` has counted by `training.lr_clock`, with automatic optimisation
    and without, and at the end of the training those that are left of `progress.expected_lr_steps`; a
    ReduceLROnPlateau takes one step at each validation, with its loss. The rates that are logged are those of the last
    update.
    """

    def __init__(self, server: "TorchServer") -> None:
        self._server = server
        self._num_steps = 0
        self._used: list[float] = []
        self._used_by = 0

    def __call__(self, metrics: Metrics, /) -> None:
        """Log "lr", or "lr/0", "lr/1" and so on when there are several optimizers or groups of parameters."""
        is_stepped = self._used_by == self._server.progress.updates
        rates = self._used if self._used and is_stepped else self._rates()
        for number, rate in enumerate(rates):
            metrics.log("lr" if len(rates) == 1 else f"lr/{number}", rate)

    def on_step_end(self, server: "TorchServer") -> None:
        progress = server.progress
        # Before the first update torch would warn, and nothing has been learned at the present rate.
        while progress.updates and self._num_steps < progress.lr_steps:
            for scheduler in as_list(server.lr_scheduler):
                if not isinstance(scheduler, ReduceLROnPlateau):
                    self._step(scheduler)
            self._num_steps += 1

    def on_train_end(self, server: "TorchServer") -> None:
        self.on_step_end(server)

    def on_validation_end(self, server: "TorchServer", metrics: dict[str, float]) -> None:
        for scheduler in as_list(server.lr_scheduler):
            if isinstance(scheduler, ReduceLROnPlateau):
                self._step(scheduler, metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_steps = state["num_steps"]

    def _rates(self) -> list[float]:
        optimizers = as_list(self._server.optimizer)
        return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    def _step(self, scheduler: Any, *arguments: float) -> None:
        num_updates = self._server.progress.updates
        if self._used_by != num_updates:
            self._used, self._used_by = self._rates(), num_updates
        call_user(f"the lr_scheduler of {type(self._server).__name__}", scheduler.step, *arguments)


def as_list(values: Any) -> list[Any]:
    """The elements of a list or tuple, or the one value there is; none for None."""
    if values is None:
        return []
    return list(values) if isinstance(values, tuple | list) else [values]
