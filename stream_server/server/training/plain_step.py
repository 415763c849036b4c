"""The training step of a plain `StreamServer`, which updates its model itself.

Why: docs/decisions/0034-manual-optimisation.md
"""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.progress.batches import StepOutcome
from stream_server.server.progress.changes import Changes
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.fingerprint import (
    Fingerprints,
    differing,
    of_arrays,
    of_numbers,
    of_replicated_state,
    of_user_state,
)
from stream_server.server.user.collate import NumpyCollate
from stream_server.server.user.framework import LearningRateCallback, Step, framework_named
from stream_server.server.user.losses import Array, loss_of
from stream_server.server.user.no_training import NoTraining
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from stream_server.user_code import call_user
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.server.progress.batches import UnionBatch

NUMPY_DTYPES = {"32-true": np.float32, "64-true": np.float64}

_FOR_TORCH = {
    "accumulate": 1,
    "clip_norm": None,
    "clip_value": None,
    "compile": False,
    "device": "auto",
    "matmul_precision": "highest",
    "deterministic": False,
    "sharding": None,
}

_log = logging.getLogger(__name__)


class NumpyFramework:
    """NumPy, or whatever else a plain `StreamServer` computes with in its own `training_step`.

    Tensors of torch in a checkpointed state come back as such, all other arrays as NumPy's.
    """

    trains_model = False

    def check_precision(self, precision: str, device: str) -> None:
        if precision not in NUMPY_DTYPES:
            raise ConfigError(
                f"training.precision {precision} needs a TorchServer; a StreamServer knows {' and '.join(NUMPY_DTYPES)}"
            )

    def make_collate(self, precision: str) -> NumpyCollate:
        return NumpyCollate(NUMPY_DTYPES[precision])

    def make_step(self, server: StreamServer, ranks: Ranks) -> Step:
        return PlainStep(server, ranks)

    def plain(self, state: Any, name: str) -> Any:
        # Without torch in the process there is no tensor in the state.
        return framework_named("torch").plain(state, name) if "torch" in sys.modules else state

    def restored(self, state: Any, own: Any = None) -> Any:
        return framework_named("torch").restored(state) if "torch" in sys.modules else state

    def device_bytes(self) -> Mapping[str, int]:
        return {}


class PlainStep:
    """The step of a plain `StreamServer`: its `training_step` updates the model itself, by `all_reduce`.

    A rank without a batch joins the reductions but runs no user code, so its model stays behind. Before it next
    trains or evaluates, it is given the `state_dict` of a rank that took part.
    """

    needs_every_rank = False
    at_boundary = True
    rounding = ""

    def __init__(self, server: StreamServer, ranks: Ranks) -> None:
        self._server = server
        self._ranks = ranks
        self._behind: set[int] = set()
        self._newest = 0
        self._has_trained = False
        self.warnings: Sequence[str] = ()
        self.changes = Changes()
        self._refuse_what_is_for_torch()

    def __enter__(self) -> "PlainStep":
        server = self._server
        call_user(f"{type(server).__name__}.prepare_training_attributes", server.prepare_training_attributes)
        if self._trains and not (self._defines("state_dict") and self._defines("load_state_dict")):
            self._warn(
                f"{type(server).__name__} has no state_dict and load_state_dict: after a restart the study goes on "
                "with what prepare_training_attributes makes, and all that was learned before is lost. Give it both"
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def stage(self, data: Any) -> Any:
        return data

    def to_device(self, data: Any) -> Any:
        return data

    def run(self, union_batch: "UnionBatch", data: Any, batch_idx: int) -> StepOutcome:
        if any(union_batch.sizes[rank] for rank in self._behind):
            self._catch_up()
        server = self._server
        with server.union_mean.step(union_batch.sizes):
            name = f"{type(server).__name__}.training_step"
            loss = None if union_batch.own is None else call_user(name, server.training_step, data, batch_idx)
        if server.union_mean.num_joined:
            self._behind |= {rank for rank, size in enumerate(union_batch.sizes) if not size}
            self._newest = union_batch.lowest_rank
        own = union_batch.own
        if own is None:
            return StepOutcome()
        self._has_trained = True
        mean, sample_losses = self._loss_of(name, loss, own.size)
        return StepOutcome(loss=mean, sample_losses=sample_losses)

    def finish(self) -> StepOutcome | None:
        self._catch_up()
        own, union_mean = type(self._server).__name__, self._server.union_mean
        if self._may_differ and self._has_trained and not union_mean.num_means:
            self._warn(
                f"{own} called no all_reduce on {self._ranks.size} ranks: each rank trained a model of its own, and "
                "that of rank 0 is saved. Update the model by self.all_reduce(gradients); or, if the ranks are united "
                "in another way, define replicated_state, which is compared"
            )
        return None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._catch_up()
        yield

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        self._catch_up()

    def fingerprints(self) -> Fingerprints:
        return of_replicated_state(self._server)

    def compare_saved(self) -> None:
        if not self._may_differ:
            return
        names = differing(self._ranks, self.learned)
        if names:
            own = type(self._server).__name__
            self._warn(
                f"{listed(names)} in the state_dict of {own} {'are' if len(names) > 1 else 'is'} not the same on "
                f"all {self._ranks.size} ranks, of which that of rank 0 is saved: update what is learned by "
                "self.all_reduce(gradients). If it is meant to differ, define replicated_state, which says what is the "
                "same"
            )

    def learned(self) -> Fingerprints:
        return of_user_state(self._server)

    def unsaved(self) -> Fingerprints:
        # A class that saves nothing is told so.
        return of_arrays(vars(self._server)) if self._trains and self._defines("state_dict") else {}

    def unsaved_numbers(self) -> Fingerprints:
        return of_numbers(vars(self._server)) if self._trains and self._defines("state_dict") else {}

    def trainable(self) -> tuple[Fingerprints, Fingerprints]:
        return {}, {}

    def state_dict(self) -> dict[str, Any]:
        """An empty state: the model of such a server is in its own `state_dict`."""
        return {}

    def shards(self) -> dict[str, Any]:
        return {}

    def lending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exported(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def model_state(self) -> dict[str, Any]:
        return {}

    def load_model_state(self, state: dict[str, Any]) -> None:
        pass

    def compare_constants(self, state: Mapping[str, Any]) -> None:
        pass

    def learning_rates(self) -> "list[LearningRateCallback]":
        return []

    def random_state(self) -> dict[str, Any]:
        return {}

    def seed_random_state(self, seed: int) -> None:
        pass

    def load_random_state(self, state: dict[str, Any]) -> None:
        pass

    @property
    def _trains(self) -> bool:
        return self._defines("training_step") and not isinstance(self._server, NoTraining)

    @property
    def _may_differ(self) -> bool:
        return self._ranks.size > 1 and self._trains and not self._defines("replicated_state")

    def _defines(self, method: str) -> bool:
        return getattr(type(self._server), method) is not getattr(StreamServer, method)

    def _warn(self, text: str) -> None:
        if self._ranks.rank == 0 and text not in self.warnings:
            self.warnings = [*self.warnings, text]
            _log.warning("%s", text)

    def _refuse_what_is_for_torch(self) -> None:
        if self._server.config is None:
            return
        settings = self._server.config.training
        ignored = [f"training.{key}" for key, default in _FOR_TORCH.items() if getattr(settings, key) != default]
        ignored += ["checkpoint.exclude"] if self._server.config.checkpoint.exclude else []
        ignored += [f"{type(self._server).__name__}.save_filter"] if hasattr(self._server, "save_filter") else []
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
                _log.warning("this rank missed steps, but %s.state_dict returned nothing to catch up with", own)
            call_user(f"{own}.load_state_dict", server.load_state_dict, received)
        self._behind.clear()

    def _loss_of(self, name: str, loss: Any, num: int) -> tuple[float | None, Array | None]:
        if loss is None:
            if self._server.automatic_optimization:
                raise UserCodeError(
                    f"{name} must return the mean loss of its batch, but returned None: end it with `return loss`, or "
                    "set automatic_optimization = False in its class if there is none"
                )
            return None, None
        return loss_of(loss, num, f"{name} returned a loss")
