"""The server of a torch model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

from stream_server.errors import UserCodeError
from stream_server.server.user.components import make_loader, make_training_attributes
from stream_server.server.user.stream_dataset import StreamDataset
from stream_server.server.user.stream_server import StreamServer


class ManualBackward(Protocol):
    """The backward pass that `manual_backward` runs within a study."""

    def backward(self, loss: torch.Tensor, **options: Any) -> None: ...


class LastCall:
    """The last forward pass of a module, if it took one tensor alone and gave one.

    It counts as unknown once either was changed in place.
    """

    def __init__(self) -> None:
        self._known: tuple[torch.Tensor, torch.Tensor] | None = None
        self._versions = (0, 0)

    def note(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        """The forward hook of the module."""
        self._known = None
        if len(arguments) == 1 and not named and all(_has_version(value) for value in (*arguments, output)):
            self._known = (arguments[0], output)
            self._versions = (arguments[0]._version, output._version)

    def output_of(self, inputs: Any) -> torch.Tensor | None:
        """The output for these very `inputs`; None if it is not known."""
        if self._known is None or self._known[0] is not inputs:
            return None
        return self._known[1] if self._versions == (inputs._version, self._known[1]._version) else None


class SkippedBatch:
    """Result of `skip_batch`, which `training_step` returns in place of a loss."""


class TorchServer(StreamServer):
    """A server that trains a torch model on all ranks as if on the union of their batches.

    `train_dataset` has the samples of the stream, for `train_dataloader`.

    `model`, `optimizer` and `lr_scheduler` are what `prepare_training_attributes` returned, `device` is where the model
    and the batches are. `training_step` returns the loss, a dict with it as "loss", or what `skip_batch` gives. With
    `automatic_optimization = False` it calls `manual_backward` and steps the optimizers. `criterion` is what study.json
    names as `training.criterion`: then `training_step` and `validation_step` by default return
    `self.criterion(self.model(inputs), targets)` for a batch that is a pair of inputs and targets.
    """

    framework: ClassVar[str] = "torch"
    model: Any
    optimizer: Any
    lr_scheduler: Any = None
    criterion: Any = None
    train_dataset: StreamDataset
    tell_gradients: Callable[[Any], None] | None = None
    _manual: ManualBackward | None = None
    _last_call: LastCall | None = None
    _read_newest: Callable[[Path], dict[str, torch.Tensor]] | None = None

    def prepare_training_attributes(self) -> Any:
        """Make `model, optimizer` or `model, optimizer, lr_scheduler`; by default those that study.json names.

        These are `training.model`, `training.optimizer` and `training.lr_scheduler`.

        With manual optimisation `optimizer` and `lr_scheduler` may be lists. In either case schedulers are stepped for
        you: after updates, such that they stand where the run stands by `training.lr_clock`, and a ReduceLROnPlateau at
        every validation, with its loss.
        """
        if self.config is None or self.config.training.model is None:
            raise NotImplementedError(f"{type(self).__name__} must define prepare_training_attributes")
        return make_training_attributes(self)

    def train_dataloader(self) -> Any:
        """A `DataLoader` over `self.train_dataset`, with the batches of the training; None: they are made for you.

        For a `collate_fn` of your own, a filter, or further samples from files. It may have any dataset that iterates
        `self.train_dataset`, and num_workers=0. Called once on every rank, after `prepare_training_attributes`; the
        loader runs on a thread of its own, while the training waits for it or with `training.prefetch` beside it. By
        default it is what `training.train_dataloader` in study.json names.
        """
        return make_loader(self, "training.train_dataloader", self.train_dataset)

    def make_loader(self, samples: Iterator[Any]) -> Any:
        self.train_dataset = StreamDataset(samples)
        loader = self.train_dataloader()
        if isinstance(loader, DataLoader) and loader.generator is None:
            # Beginning to iterate draws a number, which must not come from the generator that a restart restores.
            loader.generator = torch.Generator()
        return loader

    def model_to_evaluate(self) -> nn.Module:
        """The weights that are validated, exported, evaluated and kept among the best; `self.model` by default.

        Return for example `self.ema`, an average of the weights (`torch.optim.swa_utils.AveragedModel`) that
        `prepare_training_attributes` made and `on_step_end`, which is called on every rank, updates. Within
        `validation_step`, `self.model` is what this returns; of an AveragedModel it is the module inside, with the
        names of your own. Modules that are attributes of the server are moved to the device of the model, and saved in
        each checkpoint.
        """
        return self.model  # type: ignore[no-any-return]

    def save_filter(self, name: str) -> bool:
        """Whether checkpoints save the parameter of this name; False as for a pattern in `checkpoint.exclude`.

        That is for frozen ones that `prepare_training_attributes` loads at each start.
        """
        return True

    def newest_weights(self, path: str | Path) -> dict[str, torch.Tensor]:
        """The newest weights of a model that another run trains, such as a teacher, by name; the same on every rank.

        `path` is as `load.checkpoint` in study.json. Every rank calls it at the same batch, as in `on_step_end`. Empty
        in a trial, an evaluation or a test, and where nothing is there yet or can be read, which a warning says.

        Raises:
            UserCodeError: it was called in `__init__`, or where some ranks may not come, as in `training_step`.
        """
        if self.config is not None and "union_mean" not in self._held:
            raise UserCodeError("newest_weights has no study in __init__: call it in prepare_training_attributes")
        self.union_mean.check_call("newest_weights", in_steps=False)
        return {} if self._read_newest is None else self._read_newest(Path(path))

    def predict(self, batch: Any) -> Any:
        """The output of the model for the first item of a batch of inputs and targets; None for any other batch."""
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            return None
        known = None if self._last_call is None else self._last_call.output_of(batch[0])
        return self.model(batch[0]) if known is None else known

    def _loss_by_default(self, batch: Any, method: str) -> Any:
        if self.criterion is None:
            return super()._loss_by_default(batch, method)
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise UserCodeError(
                f"{type(self).__name__} must define {method}: by default a batch is a pair of inputs and targets, for "
                f"training.criterion, but it is {type(batch).__name__} here"
            )
        inputs, targets = batch
        return self.criterion(self.model(inputs), targets)

    @contextmanager
    def remember_calls(self) -> Iterator[None]:
        """Within, `predict` does not repeat the last forward pass of the model, which `validation_step` made."""
        self._last_call = LastCall()
        hook = self.model.register_forward_hook(self._last_call.note, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            self._last_call = None

    @property
    def expected_lr_steps(self) -> int:
        """Number of steps of the `lr_scheduler` in the whole study: for `T_max` or `total_iters`.

        It stays what it was at the first start of the study, also on another number of ranks and in an evaluation.

        Raises:
            UserCodeError: neither the number of updates nor that of samples is known.
        """
        num_steps = self.progress.expected_lr_steps
        if num_steps is None:
            raise UserCodeError(
                "expected_lr_steps is not known in advance: write study.time_steps and, if training.lr_clock is to be "
                '"updates", a buffer.policy or training.draws_per_sample that bounds the number of draws'
            )
        return num_steps

    @property
    def device(self) -> torch.device:
        """The device of the model and of the batches."""
        device: torch.device = vars(self).get("_device", torch.device("cpu"))
        return device

    def skip_batch(self) -> SkippedBatch:
        """Leave this rank's batch out of the training: `return self.skip_batch()` in `training_step`.

        Its samples have no part in the step, and are `skipped` in the account. If no rank has a loss, there is no
        update. A rank that calls `all_reduce` in other batches calls it in this one, too.
        """
        return SkippedBatch()

    def manual_backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Backpropagate the mean loss of this rank's batch; adds the gradient of the union batch to the gradients.

        In `training_step`, with `automatic_optimization = False` only; all ranks with a batch must call it alike.
        `options`, such as `retain_graph`, are those of `Tensor.backward`.
        """
        with self.phases.measure("backward"):
            if self._manual is not None:
                self._manual.backward(loss, **options)
            elif "_device" in self._held:
                raise UserCodeError(f"{type(self).__name__}.manual_backward needs automatic_optimization = False")
            else:
                loss.backward(**options)  # type: ignore[no-untyped-call]

    def gradient_norms(self, depth: int = 1) -> dict[str, float]:
        """For `on_gradients`: the norm of each part of the model, by the first `depth` words of names of parameters."""
        norms: dict[str, list[torch.Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            if (gradient := parameter.grad) is not None:
                values = gradient.coalesce().values() if gradient.is_sparse else gradient
                norm: Any = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
                norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                norms.setdefault(".".join(name.split(".")[:depth]), []).append(norm)
        return {part: float(torch.linalg.vector_norm(torch.stack(each))) for part, each in norms.items()}

    def take_steps(self, manual: ManualBackward) -> None:
        """Hand `manual_backward` and the steps of the optimizers over to `manual`."""
        self._manual = manual


def modules_of(server: TorchServer) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are attributes of a server, the model among them, or in a list, tuple or dict that is one."""
    for name, value in sorted(vars(server).items()):
        if isinstance(value, nn.Module):
            yield name, value
        elif isinstance(value, dict | list | tuple):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}.{key}", item) for key, item in items if isinstance(item, nn.Module))


def _has_version(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return False
    # One of torch.func.vmap or grad is gone once these have returned.
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)
