"""The training step of a TorchServer: the exact gradient of the union of all ranks' batches."""

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.progress.changes import Changes
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.control_round import barrier
from stream_server.server.training.fingerprint import (
    Fingerprints,
    differing,
    of_arrays,
    of_numbers,
    of_replicated_state,
    of_user_state,
)
from stream_server.server.training.torch.automatic import AutomaticOptimization
from stream_server.server.training.torch.device_copies import CudaDevice, DeviceCopies, OnItsWay
from stream_server.server.training.torch.devices import (
    TorchGroup,
    backend_of,
    device_of,
    keep_freed_memory,
    limit_threads,
)
from stream_server.server.training.torch.fingerprint import Constants, of_model, of_tensors, of_whole
from stream_server.server.training.torch.gradients import warning_of_hooks
from stream_server.server.training.torch.hyperparameters import Hyperparameters
from stream_server.server.training.torch.learning_rates import LearningRates, as_list
from stream_server.server.training.torch.manual import ManualOptimization
from stream_server.server.training.torch.model import needs_every_rank, set_up, shared_out, state_of
from stream_server.server.training.torch.precision import LossScaling, Precision, StuckWeights, make_precision, numerics
from stream_server.server.training.torch.reduction import UnionGradients, clear, further_parameters
from stream_server.server.training.torch.shards import Lender, OfShards, saved_shard, sharded_in
from stream_server.server.training.torch.skipped_updates import SkippedUpdates
from stream_server.server.training.torch.state import as_reference, set_torch_random_states, torch_random_states
from stream_server.server.training.torch.weights import ServerModules, other_modules
from stream_server.server.user.framework import LearningRateCallback
from stream_server.server.user.torch_server import SkippedBatch, TorchServer
from stream_server.storage.shards import SHARED_BY
from stream_server.user_code import call_user
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


_log = logging.getLogger(__name__)


class TorchStep:
    """Trains a model as one rank would on the union batch.

    The phases it measures are forward, backward, optimizer and, for the reduction of gradients, the sharing of module
    buffers and the waiting of ranks without a batch, all_reduce.
    `precision` is used instead of what `training.precision` names.
    """

    def __init__(
        self, server: TorchServer, ranks: Ranks, config: "StudyConfig", *, precision: Precision | None = None
    ) -> None:
        settings = config.training
        if settings.accumulate != 1 and not server.automatic_optimization:
            raise ConfigError(
                "training.accumulate must be left out for a server with automatic_optimization = False: it accumulates "
                "by stepping its optimizers at every k-th batch"
            )
        self._server = server
        self._ranks = ranks
        self._settings = settings
        self._name = f"{type(server).__name__}.training_step"
        self._seed = config.study.seed
        self._interface, self._shared = config.network.interface, config.output_dir
        self._device = device_of(ranks, settings.device)
        self._precision = precision or make_precision(settings.precision, self._device)
        self._scaling = self._precision if isinstance(self._precision, LossScaling) else None
        self._skipped = SkippedUpdates(most_in_row=0 if settings.nonfinite == "stop" else settings.max_nonfinite)
        self._stack = ExitStack()
        self._weights = ServerModules(server, exclude=config.checkpoint.exclude)
        self._union: UnionGradients | None = None
        self._optimization: AutomaticOptimization | ManualOptimization | None = None
        self._stuck = StuckWeights()
        self._hyperparameters = Hyperparameters(server, config)
        self._constants = Constants(ranks, self._weights, self._warn)
        self._num_forward = 0
        self._sample_losses: Tensor | None = None
        self._buffers_from = 0
        self._copies: DeviceCopies | None = None
        self._lender = Lender(ranks, self._weights.whole_state)
        self.needs_every_rank = False
        self._was_training = False
        self.warnings: Sequence[str] = ()

    @property
    def changes(self) -> Changes:
        return self._hyperparameters.changes

    @property
    def at_boundary(self) -> bool:
        return self._optimization is None or self._optimization.at_boundary

    def __enter__(self) -> "TorchStep":
        limit_threads(self._server.num_threads)
        # With shards memory counts more, of which each unit that is let go gives some back.
        if self._device.type == "cpu" and self._settings.sharding is None:
            keep_freed_memory()
        with ExitStack() as stack:
            backend = backend_of(self._ranks, self._device)
            sharding = self._settings.sharding
            if sharding is not None:
                _sharding().check_sharding(self._server, sharding, self._device, backend)
            group = TorchGroup(
                self._ranks,
                backend=backend,
                shared=self._shared,
                interface=self._interface,
                even_alone=sharding is not None,
            )
            stack.enter_context(group)
            stack.enter_context(numerics(self._settings))
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self._server.hold_attributes(_device=self._device)
            torch.manual_seed(self._seed)
            set_up(self._server, self._precision, compiled=self._settings.compile, seed=self._seed)
            self._hyperparameters.note_made()
            self._weights.move(self._precision)
            # The same seed made the same weights on all ranks; noise, such as dropout, differs from here on.
            torch.manual_seed(self._seed + 1 + self._ranks.rank)
            in_parts = self._ranks.size > 1 or self._settings.accumulate > 1
            if in_parts and (text := warning_of_hooks(self._server.model)):
                self._warn(text)
            self._join_ranks()
            self._constants.note_made()
            self._weights.exclude()
            if self._device.type == "cuda":
                self._copies = DeviceCopies(CudaDevice(self._device), self._precision.convert)
            # All ranks have made the model, or none has: those that take it down wait for each other.
            barrier(self._ranks)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def stage(self, data: Any) -> Any:
        return data if self._copies is None else self._copies.begin(data)

    def to_device(self, data: Any) -> Any:
        if self._copies is not None and isinstance(data, OnItsWay):
            return self._copies.finish(data)
        return self._precision.convert(data)

    def run(self, union_batch: UnionBatch, data: Any, batch_idx: int) -> StepOutcome:
        self._weights.load_pending()
        self._watch_mode()
        if self._ranks.size > 1:
            self._buffers_from = union_batch.lowest_rank
        assert self._optimization is not None
        outcome = self._optimization.run(union_batch, partial(self._forward, union_batch, data, batch_idx))
        if self._num_forward == 1 and union_batch.own is not None:
            self._constants.note_made_late()
        outcome.sample_losses = self._sample_losses
        return outcome

    def finish(self) -> StepOutcome | None:
        self.synchronize()
        return None if self._optimization is None else self._optimization.finish()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.synchronize()
        devices = [self._device] if self._device.type == "cuda" else []
        # How often it is validated changes no random number of the training. A DataLoader draws one at each pass.
        with (
            torch.random.fork_rng(devices),
            self._weights.evaluating(),
            self._refuse_learning(),
            torch.no_grad(),
            self._precision.forward_context(),
        ):
            # Those of the training that follows would come twice.
            place = f"{self._seed} {self._server.progress.batches} {self._ranks.rank} of {self._ranks.size}"
            torch.manual_seed(zlib.crc32(place.encode()))
            before = self._weights.versions()
            yield
            self._tell_of_changes(before)

    def _watch_mode(self) -> None:
        """Notice a model that the user's code has left in evaluation mode since the last batch."""
        was_training, self._was_training = self._was_training, self._server.model.training
        if was_training and not self._was_training:
            self._warn(
                "the model is trained in evaluation mode, without dropout and with the statistics that batch "
                f"normalisation has: {type(self._server).__name__} or a callback has called its eval(). Call its "
                "train() afterwards; around a validation the study does both"
            )

    def _tell_of_changes(self, before: Mapping[str, tuple[Tensor, int]]) -> None:
        if changed := [name for name, (tensor, version) in before.items() if tensor._version != version]:
            self._warn(
                f"a validation changes {listed(changed)} of the model, which so "
                "learns from the data that are held out: leave train() and whatever else changes the model out of "
                f"{type(self._server).__name__}.validation_step"
            )

    def _warn(self, text: str) -> None:
        """Tell it at the first time."""
        if self._ranks.rank == 0 and text not in self.warnings:
            self.warnings = [*self.warnings, text]
            _log.warning("%s", text)

    @contextmanager
    def _refuse_learning(self) -> Iterator[None]:
        """Within, no step of an optimizer changes the weights, and gradients are not those of the training."""
        assert self._union is not None
        trained = list(self._union.named().values())
        weights = {id(each) for each in (*trained, *self._server.model.parameters())}
        gradients = [each.grad for each in trained]

        def refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if any(id(each) in weights for group in optimizer.param_groups for each in group["params"]):
                raise UserCodeError(
                    "a validation steps an optimizer of the weights: it would train on the data that are held out, so "
                    f"leave zero_grad, backward and step out of {type(self._server).__name__}.validation_step"
                )

        clear(trained)
        hook = register_optimizer_step_pre_hook(refuse)
        try:
            yield
        finally:
            hook.remove()
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = gradient

    def together(self) -> AbstractContextManager[None]:
        return nullcontext() if self._union is None else self._union.together()

    def synchronize(self) -> None:
        self._weights.load_pending()
        if self._union and self._optimization and self._ranks.size > 1:
            with self._server.phases.measure("all_reduce"):
                self._optimization.catch_up()
                self._union.broadcast_buffers(self._buffers_from)
                evaluated = self._weights.returned
                if evaluated is not self._server.model:
                    self._union.broadcast_module(evaluated, self._buffers_from)
                for optimizer in shared_out(self._server):
                    optimizer.consolidate_state_dict()

    def fingerprints(self) -> Fingerprints:
        model = self._server.model
        further = further_parameters(as_list(self._server.optimizer), known=set(map(id, model.parameters())))
        return {**of_model(model, further), **of_replicated_state(self._server)}

    def compare_saved(self) -> None:
        self._constants.compare_ranks(has_trained=self._num_forward > 1)
        names = differing(self._ranks, self._further_fingerprints)
        if names:
            own = type(self._server).__name__
            self._warn(
                f"{listed(names)} of {own} {'are' if len(names) > 1 else 'is'} not the same on all "
                f"{self._ranks.size} ranks, of which that of rank 0 is saved: each rank has a batch of its own in "
                f"training_step, and some have none. Update it in {own}.on_step_end, which is called on every rank, "
                "from what is the same on all, such as self.model or a mean that self.all_reduce gives; what is to "
                "differ belongs into rank_state_dict"
            )

    def _further_fingerprints(self) -> Fingerprints:
        """Fingerprints of all that a checkpoint has beside the model and the optimizers."""
        modules = other_modules(self._server)
        of_modules = {
            f"{own}.{name}": mark for own, module in modules.items() for name, mark in of_model(module).items()
        }
        return {**of_modules, **self._of_user_state()}

    def _of_user_state(self) -> Fingerprints:
        return {f"state_dict()[{name!r}]": value for name, value in of_user_state(self._server).items()}

    def learned(self) -> Fingerprints:
        optimized, others = self._trainable()
        return {**of_tensors(optimized), **of_tensors(others), **self._of_user_state()}

    def unsaved(self) -> Fingerprints:
        beside_state = {**of_arrays(self._weights.attributes()), **of_tensors(self._weights.unsaved())}
        return {**of_arrays(vars(self._server)), **beside_state}

    def unsaved_numbers(self) -> Fingerprints:
        return {**of_numbers(vars(self._server)), **of_numbers(self._weights.attributes())}

    def trainable(self) -> tuple[Fingerprints, Fingerprints]:
        optimized, others = self._trainable()
        return of_whole(self._ranks, optimized), of_whole(self._ranks, others)

    def _trainable(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors that require a gradient, by name: those in optimizers, and the others."""
        optimizers = as_list(self._server.optimizer)
        optimized = {
            id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]
        }
        named = self._weights.trainable()
        in_optimizers = {name: each for name, each in named.items() if id(each) in optimized}
        others = {name: each for name, each in named.items() if id(each) not in optimized}
        return in_optimizers, others

    def shards(self) -> dict[str, Any]:
        sharded = sharded_in(self._learned) if self._weights.are_sharded else {}
        return {name: saved_shard(tensor) for name, tensor in sharded.items()}

    def lending(self) -> AbstractContextManager[None]:
        return self._lender.lending() if self._weights.are_sharded else nullcontext()

    def exported(self) -> dict[str, Any]:
        return self._weights.exported(self._lender.tensor)

    def _learned(self, of_shards: OfShards = as_reference) -> dict[str, Any]:
        return {**self._weights.state(of_shards), **state_of(self._server, of_shards)}

    def state_dict(self) -> dict[str, Any]:
        scaler = {} if self._scaling is None else self._scaling.state_dict()
        name = f"saving the model of {type(self._server).__name__}"
        learned = call_user(name, self._learned)
        assert self._union is not None
        trained = {parameter: each.requires_grad for parameter, each in self._union.named().items()}
        return {
            **learned,
            **({SHARED_BY: self._ranks.size} if self._weights.are_sharded else {}),
            "trained": trained,
            "scaler": scaler,
            "skipped": self._skipped.state_dict(),
            "made": dict(self._hyperparameters.made),
            "constants": dict(self._constants.made),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_model_state(state)
        if text := self._hyperparameters.load(state):
            self._warn(text)
        assert self._union is not None
        for parameter, each in self._union.named().items():
            each.requires_grad_(state["trained"].get(parameter, each.requires_grad))
        self._skipped.load_state_dict(state["skipped"])
        if self._scaling is not None and state["scaler"]:
            self._scaling.load_state_dict(state["scaler"])

    def model_state(self) -> dict[str, Any]:
        beside = {"constants": dict(self._constants.made)} if self._constants.made else {}
        return {**self._weights.whole_state(self._lender.bytes_of), **beside}

    def load_model_state(self, state: dict[str, Any]) -> None:
        self._weights.load(state)
        self.compare_constants(state)

    def compare_constants(self, state: Mapping[str, Any]) -> None:
        self._constants.compare(state.get("constants", {}))

    def learning_rates(self) -> list[LearningRateCallback]:
        return [LearningRates(self._server)]

    def random_state(self) -> dict[str, Any]:
        states: dict[str, Any] = torch_random_states()
        return states

    def seed_random_state(self, seed: int) -> None:
        torch.manual_seed(seed)

    def load_random_state(self, state: dict[str, Any]) -> None:
        set_torch_random_states(state)

    @property
    def rounding(self) -> str:
        return self._stuck.warning

    def _join_ranks(self) -> None:
        """Make the model the same on all ranks. Collective."""
        server = self._server
        if self._ranks.size > 1:
            self.needs_every_rank = needs_every_rank(server, uneven=self._settings.uneven)
        self._union = UnionGradients(
            self._ranks, server.model, as_list(server.optimizer), lambda: other_modules(server).values()
        )
        self._union.broadcast()
        if self._settings.sharding is not None:
            self._union = _sharding().ShardedGradients(server, self._ranks, self._settings.sharding, self._device)
        make = AutomaticOptimization if server.automatic_optimization else ManualOptimization
        self._optimization = make(
            server, self._ranks, self._settings, self._precision, self._union, self._skipped, self._warn
        )
        for optimizer in as_list(server.optimizer):
            self._stuck.watch(optimizer)

    def _forward(self, union_batch: UnionBatch, data: Any, batch_idx: int) -> Tensor | None:
        """The loss that `training_step` returns; a rank without a batch joins the calls of the others."""
        server, own, self._sample_losses = self._server, union_batch.own, None
        assert self._optimization is not None
        phase = server.phases.measure("forward" if own else "all_reduce")
        with phase, server.union_mean.step(union_batch.sizes, self._optimization.joins()):
            if own is None:
                return None
            with self._precision.forward_context():
                training_step = partial(call_user, self._name, server.training_step, data, batch_idx)
                returned = self._optimization.call(training_step)
                self._num_forward += 1
                return self._loss_of(returned, own.size, batch_idx)

    def _loss_of(self, returned: Any, num: int, batch_idx: int) -> Tensor | None:
        """The mean loss in what `training_step` returned for `num` samples, None if it skips the batch."""
        if isinstance(returned, Tensor) and not returned.ndim:
            return returned
        if isinstance(returned, Mapping) and "loss" in returned:
            returned = returned["loss"]
        if isinstance(returned, SkippedBatch) or (returned is None and not self._server.automatic_optimization):
            return None
        if returned is None:
            raise UserCodeError(
                f"{self._name} must return the mean loss of its batch, but returned None for batch {batch_idx}: end it "
                "with `return loss`, or with `return self.skip_batch()` for a batch that is not to be trained. If it "
                "steps its optimizer itself, set automatic_optimization = False in its class, and call "
                "self.manual_backward(loss) for loss.backward()"
            )
        if isinstance(returned, Tensor) and returned.shape == (num,):
            self._sample_losses = returned.detach()
            return returned.mean()
        if not isinstance(returned, Tensor) or returned.numel() != 1:
            is_tensor = isinstance(returned, Tensor)
            kind = f"a tensor of shape {tuple(returned.shape)}" if is_tensor else f"{returned!r}"
            raise UserCodeError(
                f"{self._name} must return the mean loss of its batch, a tensor of one element or of one for each of "
                f'{num} samples, a dict with it as "loss", or self.skip_batch(), not {kind}'
            )
        return returned


def _sharding() -> Any:
    """The module that shards, once a study asks for it: to import that part of torch takes a second."""
    return import_module("stream_server.server.training.torch.sharding")
