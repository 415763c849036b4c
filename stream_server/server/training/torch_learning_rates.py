"""The learning rates of a TorchServer's optimizers."""

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.server.training.callbacks import Callback, call_user
from stream_server.server.training.metrics import Metrics

if TYPE_CHECKING:
    from stream_server.server.torch_server import TorchServer


class LearningRates(Callback):
    """Steps the server's `lr_scheduler`, or each of several, and logs the rates whenever metrics are written.

    Schedulers take as many steps as `progress.lr_steps` has counted by `training.lr_clock`, with automatic optimisation
    and without; a ReduceLROnPlateau takes one step at each validation, with its loss.
    """

    def __init__(self, server: "TorchServer") -> None:
        self._server = server
        self._num_steps = 0

    def __call__(self, metrics: Metrics, /) -> None:
        """Log "lr", or "lr/0", "lr/1" and so on when there are several optimizers or groups of parameters."""
        groups = [group for optimizer in as_list(self._server.optimizer) for group in optimizer.param_groups]
        for number, group in enumerate(groups):
            metrics.log("lr" if len(groups) == 1 else f"lr/{number}", float(group["lr"]))

    def on_step_end(self, server: "TorchServer") -> None:
        progress = server.progress
        # Before the first update torch would warn, and nothing has been learned at the present rate.
        while progress.updates and self._num_steps < progress.lr_steps:
            for scheduler in as_list(server.lr_scheduler):
                if not isinstance(scheduler, ReduceLROnPlateau):
                    self._step(scheduler)
            self._num_steps += 1

    def on_validation_end(self, server: "TorchServer", metrics: dict[str, float]) -> None:
        for scheduler in as_list(server.lr_scheduler):
            if isinstance(scheduler, ReduceLROnPlateau):
                self._step(scheduler, metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_steps = state["num_steps"]

    def _step(self, scheduler: Any, *arguments: float) -> None:
        call_user(f"the lr_scheduler of {type(self._server).__name__}", scheduler.step, *arguments)


def as_list(values: Any) -> list[Any]:
    """The elements of a list or tuple, or the one value there is; none for None."""
    if values is None:
        return []
    return list(values) if isinstance(values, tuple | list) else [values]
