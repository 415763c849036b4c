"""One training step on all ranks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stream_server.errors import UserCodeError
from stream_server.server.training.callbacks import call_user

if TYPE_CHECKING:
    from stream_server.server.stream_server import StreamServer
    from stream_server.server.training.lockstep import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a step did: this rank's loss, if it had a batch and returned one, and whether it ended an update.

    `skipped`: the gradient was not finite, so that the model was left as it was.
    """

    loss: float | None = None
    updated: bool = True
    skipped: bool = False


class Step(Protocol):
    """How a server learns. All methods are collective; main thread only. `with` sets the model up and takes it down."""

    needs_every_rank: bool
    """Whether a rank without data cannot take part."""

    @property
    def at_boundary(self) -> bool:
        """Whether all that was trained is in the model: no accumulation is under way."""
        ...

    def __enter__(self) -> "Step": ...

    def __exit__(self, *exc_info: object) -> None: ...

    def place(self, data: Any) -> Any:
        """A batch's data where the model is."""
        ...

    def run(self, turn: "Turn", data: Any, batch_idx: int) -> Outcome:
        """Train on the union batch; `data` is this rank's part of it."""
        ...

    def flush(self) -> Outcome:
        """End an accumulation that is under way with an update."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Within, the model evaluates and does not learn, and is the same on all ranks."""
        ...

    def validated(self, metrics: dict[str, float]) -> None:
        """A validation gave these means."""
        ...


class LearnerStep:
    """The step of a plain `StreamServer`: its `training_step` updates the model itself, by `all_reduce`."""

    needs_every_rank = False
    at_boundary = True

    def __init__(self, server: "StreamServer") -> None:
        self._server = server

    def __enter__(self) -> "LearnerStep":
        server = self._server
        call_user(f"{type(server).__name__}.prepare_training_attributes", server.prepare_training_attributes)
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def place(self, data: Any) -> Any:
        return data

    def run(self, turn: "Turn", data: Any, batch_idx: int) -> Outcome:
        server = self._server
        with server.union_mean.step(turn.sizes):
            if turn.batch is None:
                return Outcome()
            name = f"{type(server).__name__}.training_step"
            loss = call_user(name, server.training_step, data, batch_idx)
        return Outcome(loss=self._as_number(name, loss))

    def flush(self) -> Outcome:
        return Outcome()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def validated(self, metrics: dict[str, float]) -> None:
        pass

    def _as_number(self, name: str, loss: Any) -> float | None:
        if loss is None and not self._server.automatic_optimization:
            return None
        try:
            return float(loss)
        except (TypeError, ValueError) as error:
            raise UserCodeError(f"{name} must return the mean loss of its batch, but returned {loss!r}") from error
