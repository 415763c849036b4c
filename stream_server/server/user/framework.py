"""The library with which a server class computes: torch, NumPy alone, or another one.

A framework is a class with the methods of `Framework`. `StreamServer.framework` names it: by its name in `FRAMEWORKS`,
or as `package.module:Class`.
"""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from stream_server.errors import ConfigError
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.progress.changes import Changes
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.collate import NumpyCollate

if TYPE_CHECKING:
    from stream_server.server.metrics.metrics import Metrics

FRAMEWORKS = {
    "numpy": "stream_server.server.training.plain_step:NumpyFramework",
    "torch": "stream_server.server.training.torch.framework:TorchFramework",
}


class LearningRateCallback(Callback):
    """A callback that steps learning-rate schedulers; called, it logs the rates.

    `warnings` are what people should know of the rates although all went on.
    """

    warnings: Sequence[str] = ()

    def __call__(self, metrics: "Metrics", /) -> None:
        raise NotImplementedError


class Step(Protocol):
    """A server's training. All methods are collective; main thread only. `with` sets the model up and takes it down."""

    needs_every_rank: bool
    """Whether a rank without data cannot take part."""

    warnings: Sequence[str]
    """What people should know of how the server trains, although all goes on."""

    @property
    def changes(self) -> Changes:
        """The hyperparameters that `load_state_dict` has found changed, and not taken from the state."""
        ...

    @property
    def rounding(self) -> str:
        """Warning about updates that are rounded away, "" as long as there are not many."""
        ...

    @property
    def at_boundary(self) -> bool:
        """Whether all that was trained is in the model: no accumulation is under way."""
        ...

    def __enter__(self) -> "Step": ...

    def __exit__(self, *exc_info: object) -> None: ...

    def stage(self, data: Any) -> Any:
        """Begin to bring a batch's data where the model is; returns what `to_device` takes. Any thread."""
        ...

    def to_device(self, data: Any) -> Any:
        """A batch's data, staged or not, where the model is."""
        ...

    def run(self, union_batch: UnionBatch, data: Any, batch_idx: int) -> StepOutcome:
        """Train on the union batch; `data` is this rank's part of it."""
        ...

    def finish(self) -> StepOutcome | None:
        """End an accumulation that is under way with an update, and make the model the same on all ranks."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Within, the model evaluates and does not learn, and is the same on all ranks."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Within, this rank calls the model, whatever the others do with it; at the end they wait for each other."""
        ...

    def synchronize(self) -> None:
        """Make the model the same on all ranks."""
        ...

    def fingerprints(self) -> Mapping[str, int | None]:
        """The fingerprints of the arrays that are the same on all ranks once the model is united, by name."""
        ...

    def compare_saved(self) -> None:
        """Tell, in `warnings`, of what else rank 0 saves for all ranks, and others have otherwise."""
        ...

    def learned(self) -> Mapping[str, int | None]:
        """The fingerprints of the parameters that require a gradient, and of the arrays in the server's own state.

        Not collective.
        """
        ...

    def unsaved(self) -> Mapping[str, int | None]:
        """The fingerprints of arrays that no checkpoint has, by name: attributes of the server, buffers of its modules.

        Some of the attributes may be in a checkpoint otherwise. Not collective.
        """
        ...

    def unsaved_numbers(self) -> Mapping[str, int | None]:
        """The fingerprints of numbers and generators in attributes of the server and its modules. Not collective.

        Some of them may be in a checkpoint otherwise.
        """
        ...

    def trainable(self) -> tuple[Mapping[str, int | None], Mapping[str, int | None]]:
        """The fingerprints of the parameters that require a gradient, by name: those in optimizers, and the others.

        Empty where the study does not know them.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The united model and its learning state, in plain containers and arrays that are not modified later.

        References stand for tensors that the ranks share out.
        """
        ...

    def shards(self) -> dict[str, Any]:
        """This rank's part of these tensors, by name, likewise; empty where each rank has the whole model."""
        ...

    def lending(self) -> AbstractContextManager[None]:
        """Within, rank 0 alone acts, and has all of the model: the others give it their parts until it is done."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, on every rank, the state that `state_dict` returned on one."""
        ...

    def model_state(self) -> dict[str, Any]:
        """The model without what only training needs; empty for one that is in the server's own `state_dict`.

        "model" is what is trained, "modules" the server's further modules, "evaluated" what is validated and exported,
        if that is another one.
        """
        ...

    def exported(self) -> Mapping[str, Any] | None:
        """The tensors of the model that is validated and exported, by name; None for one in its own `state_dict`."""
        ...

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Restore the model alone from the result of `model_state` or `state_dict`."""
        ...

    def compare_constants(self, state: Mapping[str, Any]) -> None:
        """Warn of arrays that the model has beside its state, and that are other ones than in such a saved model."""
        ...

    def learning_rates(self) -> "list[LearningRateCallback]":
        """The callbacks that step learning-rate schedulers and log the rates; empty where there are none."""
        ...

    def random_state(self) -> dict[str, Any]:
        """The random generators of this rank, in plain containers and arrays."""
        ...

    def seed_random_state(self, seed: int) -> None:
        """Begin the random streams of this rank again."""
        ...

    def load_random_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `random_state` returned on this rank."""
        ...


class Framework(Protocol):
    """The library that servers compute with: checks of the precision, stacks of samples, the step, and saved state."""

    trains_model: bool
    """Whether it trains and saves `server.model`; otherwise all that is learned is in the server's `state_dict`."""

    def check_precision(self, precision: str, device: str) -> None:
        """Check that `training.precision` can be trained in on this machine, with this `training.device`.

        Raises:
            ConfigError: it cannot; the message says in what precisions it can.
        """
        ...

    def make_collate(self, precision: str) -> NumpyCollate:
        """Make the function that stacks the samples of a batch."""
        ...

    def make_step(self, server: Any, ranks: Ranks) -> Step:
        """Make the object that takes one training step on all ranks."""
        ...

    def plain(self, state: Any, name: str) -> Any:
        """The state with arrays of this library made plain, for `restored`; `name` is what errors call it.

        They are copied; NumPy's arrays may be the same. Main thread: it may wait for a device.

        Raises:
            TypeError: an array cannot be saved.
        """
        ...

    def restored(self, state: Any, own: Any = None) -> Any:
        """Give back what `plain` was given, with new arrays of this library, shared out as those of `own` are.

        Raises:
            DamagedCheckpoint: it is something else.
        """
        ...

    def device_bytes(self) -> Mapping[str, int]:
        """Memory of the rank's device by metric name, `memory/device_bytes` now, `memory/device_peak_bytes` at most.

        Empty where there is no device of its own.
        """
        ...


def framework_of(server: Any) -> Framework:
    """The framework that a server, or a class of servers, names.

    Raises:
        ConfigError: there is no such module or class.
    """
    return framework_named(server.framework)


def framework_named(reference: str) -> Framework:
    """The framework of `FRAMEWORKS` of this name, or `package.module:Class`.

    Raises:
        ConfigError: there is no such module or class.
    """
    module, _, name = FRAMEWORKS.get(reference, reference).rpartition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(f'"{framework}"' for framework in FRAMEWORKS)
        text = f'framework must be {known} or "package.module:Class", but is "{reference}": {error}'
        raise ConfigError(text) from error
    framework: Framework = factory()
    return framework
