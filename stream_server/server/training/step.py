"""One training step on all ranks."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.plain_state import from_bytes, to_bytes
from stream_server.server.ranks import Ranks
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.fingerprint import Fingerprints, of_replicated_state

if TYPE_CHECKING:
    from stream_server.server.stream_server import StreamServer
    from stream_server.server.training.lockstep import Turn

_FOR_TORCH = {
    "strategy": "ddp",
    "accumulate": 1,
    "clip_norm": None,
    "clip_value": None,
    "compile": False,
    "matmul_precision": "highest",
    "deterministic": False,
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What a step did: this rank's loss, if it had a batch and returned one, and whether it ended an update.

    `skipped`: the gradient was not finite, or no batch gave a loss, so that the model was left as it was.
    `num_left_out`: samples first drawn in batches of any rank for which `training_step` returned None.
    """

    loss: float | None = None
    updated: bool = True
    skipped: bool = False
    num_left_out: int = 0


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

    def run(self, turn: "Turn", data: Any, batch_idx: int) -> StepOutcome:
        """Train on the union batch; `data` is this rank's part of it."""
        ...

    def finish(self) -> StepOutcome | None:
        """End an accumulation that is under way with an update, and make the model the same on all ranks."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Within, the model evaluates and does not learn, and is the same on all ranks."""
        ...

    def unite(self) -> None:
        """Make the model the same on all ranks."""
        ...

    def fingerprints(self) -> Fingerprints:
        """Those of the arrays that are the same on all ranks once the model is united, by name."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The model, once it is united, and how it learns, in plain containers and arrays that nobody changes."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back, on every rank, what `state_dict` gave on one."""
        ...

    def model_state(self) -> dict[str, Any]:
        """The model without what only training needs; empty for one that is in the server's own `state_dict`.

        "model" is what is trained, "modules" the server's further modules, "evaluated" what is validated and exported,
        if that is another one.
        """
        ...

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Take back the model alone, of what `model_state` or `state_dict` gave."""
        ...

    def random_state(self) -> dict[str, Any]:
        """The random generators of this rank, in plain containers and arrays."""
        ...

    def seed_random_state(self, seed: int) -> None:
        """Begin the random streams of this rank anew."""
        ...

    def load_random_state(self, state: dict[str, Any]) -> None:
        """Take back what `random_state` gave on this rank."""
        ...


class LearnerStep:
    """The step of a plain `StreamServer`: its `training_step` updates the model itself, by `all_reduce`.

    A rank without a batch joins the reductions but runs no user code, so its model stays behind. Before it next
    trains or evaluates, it is given the `state_dict` of a rank that took part.
    """

    needs_every_rank = False
    at_boundary = True

    def __init__(self, server: "StreamServer", ranks: Ranks) -> None:
        self._server = server
        self._ranks = ranks
        self._behind: set[int] = set()
        self._newest = 0
        self._refuse_what_is_for_torch()

    def __enter__(self) -> "LearnerStep":
        server = self._server
        call_user(f"{type(server).__name__}.prepare_training_attributes", server.prepare_training_attributes)
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def place(self, data: Any) -> Any:
        return data

    def run(self, turn: "Turn", data: Any, batch_idx: int) -> StepOutcome:
        if any(turn.sizes[rank] for rank in self._behind):
            self._catch_up()
        server = self._server
        with server.union_mean.step(turn.sizes):
            name = f"{type(server).__name__}.training_step"
            loss = None if turn.batch is None else call_user(name, server.training_step, data, batch_idx)
        if server.union_mean.num_joined:
            self._behind |= {rank for rank, size in enumerate(turn.sizes) if not size}
            self._newest = turn.lowest_rank
        return StepOutcome() if turn.batch is None else StepOutcome(loss=self._as_number(name, loss))

    def finish(self) -> StepOutcome | None:
        self._catch_up()
        return None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._catch_up()
        yield

    def unite(self) -> None:
        self._catch_up()

    def fingerprints(self) -> Fingerprints:
        return of_replicated_state(self._server)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the model of such a server is in its own `state_dict`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def model_state(self) -> dict[str, Any]:
        return {}

    def load_model_state(self, state: dict[str, Any]) -> None:
        pass

    def random_state(self) -> dict[str, Any]:
        return {}

    def seed_random_state(self, seed: int) -> None:
        pass

    def load_random_state(self, state: dict[str, Any]) -> None:
        pass

    def _refuse_what_is_for_torch(self) -> None:
        if self._server.config is None:
            return
        settings = self._server.config.training
        ignored = [f"training.{key}" for key, default in _FOR_TORCH.items() if getattr(settings, key) != default]
        ignored += ["checkpoint.exclude"] if self._server.config.checkpoint.exclude else []
        if ignored:
            raise ConfigError(
                f"{' and '.join(ignored)} must be left out: that is for a TorchServer, while the training_step of a "
                "plain StreamServer updates the model itself"
            )

    def _catch_up(self) -> None:
        if not self._behind:
            return
        server = self._server
        own = type(server).__name__
        is_newest = self._ranks.rank == self._newest
        state = call_user(f"{own}.state_dict", lambda: to_bytes(server.state_dict())) if is_newest else b""
        received = from_bytes(self._ranks.broadcast_bytes(state, self._newest))
        if self._ranks.rank in self._behind:
            if not received:
                _log.warning("this rank missed steps, and %s.state_dict gives nothing by which it could catch up", own)
            call_user(f"{own}.load_state_dict", server.load_state_dict, received)
        self._behind.clear()

    def _as_number(self, name: str, loss: Any) -> float | None:
        if loss is None and not self._server.automatic_optimization:
            return None
        try:
            return float(loss)
        except (TypeError, ValueError) as error:
            raise UserCodeError(f"{name} must return the mean loss of its batch, but returned {loss!r}") from error
