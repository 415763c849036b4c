"""What users hang onto the events of a training."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stream_server.errors import StreamServerError, UserCodeError

EVENTS = (
    "on_train_start",
    "on_train_end",
    "on_batch_start",
    "on_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_checkpoint",
    "on_simulation_finished",
    "on_reception_end",
)


class Callback:
    """Something that happens at the events of a training; override the events of interest.

    Every event is called in the main thread of each rank, with no lock held, after the method of the same
    name on the server. Only `on_batch_start` and `on_batch_end` are called on some ranks alone: those that
    have a batch in this step.
    """

    def on_train_start(self, server: Any) -> None:
        """The model is set up; no batch was drawn yet."""

    def on_train_end(self, server: Any) -> None:
        """Every batch is trained and the last validation done; not called when the study fails."""

    def on_batch_start(self, server: Any, batch: Any, batch_idx: int) -> None:
        """`batch` is what `training_step` will be given."""

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: Any) -> None:
        """`loss` is what `training_step` returned on this rank."""

    def on_validation_start(self, server: Any) -> None:
        """A validation begins, on every rank."""

    def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
        """`metrics` are the means over all ranks, the same on each."""

    def on_checkpoint(self, server: Any, path: Path) -> None:
        """A checkpoint is committed in the folder `path`."""

    def on_simulation_finished(self, server: Any, simulation_id: int) -> None:
        """All that this simulation produced has been received."""

    def on_reception_end(self, server: Any) -> None:
        """No more samples will come; what is in the buffer is still to be trained."""


class Callbacks:
    """Calls an event on the server and then on every callback, in their order.

    The methods take the arguments of `Callback` without the server. An exception of a user's event becomes a
    `UserCodeError` that names whose event it was; an error of ours that passes through stays what it is.
    """

    def __init__(self, server: Any, callbacks: Iterable[Callback] = ()) -> None:
        self._server = server
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                text = f"configure_callbacks must return Callback objects, but one is {type(callback).__name__}"
                raise UserCodeError(text)
        self._listening: Mapping[str, tuple[Callback, ...]] = {
            event: tuple(c for c in self._callbacks if getattr(type(c), event) is not getattr(Callback, event))
            for event in EVENTS
        }

    def on_train_start(self) -> None:
        self._tell("on_train_start")

    def on_train_end(self) -> None:
        self._tell("on_train_end")

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._tell("on_batch_start", batch, batch_idx)

    def on_batch_end(self, batch: Any, batch_idx: int, loss: Any) -> None:
        self._tell("on_batch_end", batch, batch_idx, loss)

    def on_validation_start(self) -> None:
        self._tell("on_validation_start")

    def on_validation_end(self, metrics: Mapping[str, float]) -> None:
        self._tell("on_validation_end", dict(metrics))

    def on_checkpoint(self, path: Path) -> None:
        self._tell("on_checkpoint", path)

    def on_simulation_finished(self, simulation_id: int) -> None:
        self._tell("on_simulation_finished", simulation_id)

    def on_reception_end(self) -> None:
        self._tell("on_reception_end")

    def _tell(self, event: str, *arguments: Any) -> None:
        own = getattr(self._server, event, None)
        if own is not None:
            call_user(f"{type(self._server).__name__}.{event}", own, *arguments)
        for callback in self._listening[event]:
            call_user(f"{type(callback).__name__}.{event}", getattr(callback, event), self._server, *arguments)


def call_user(name: str, method: Any, *arguments: Any) -> Any:
    """Call a user's method; what it raises becomes a `UserCodeError` that says where.

    Raises:
        UserCodeError: the method raised an exception of its own, which is the cause.
    """
    try:
        return method(*arguments)
    except StreamServerError:
        raise
    except Exception as error:
        raise UserCodeError(f"{name} raised {type(error).__name__}: {error}") from error
