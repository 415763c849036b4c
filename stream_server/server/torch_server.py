"""StreamServer on Lightning Fabric."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks import Ranks, SoloRanks
from stream_server.server.stream_server import StreamServer
from stream_server.server.torch_collate import TorchCollate
from stream_server.server.training.step import Step
from stream_server.server.training.torch_devices import device_of
from stream_server.server.training.torch_learning_rates import LearningRates
from stream_server.server.training.torch_lightning import Fabric
from stream_server.server.training.torch_precision import check_precision

if TYPE_CHECKING:
    from stream_server.server.training.torch_manual import ManualOptimization


class TorchServer(StreamServer):
    """A server that trains a torch model on all ranks as if on the union of their batches.

    `model`, `optimizer` and `lr_scheduler` are what `prepare_training_attributes` returned: the model is your own
    module, the optimizers are wrapped by Fabric. `training_step` returns the loss, a dict with it as "loss", or None,
    which skips the batch. With `automatic_optimization = False` it calls `manual_backward` and steps the optimizers.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any = None
    fabric: Fabric
    _manual: "ManualOptimization | None" = None

    def prepare_training_attributes(self) -> Any:
        """Make `model, optimizer` or `model, optimizer, lr_scheduler`.

        With manual optimisation `optimizer` and `lr_scheduler` may be lists. In either case schedulers are stepped for
        you: after updates, such that they stand where the run stands by `training.lr_clock`, and a ReduceLROnPlateau at
        every validation, with its loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prepare_training_attributes")

    def model_to_evaluate(self) -> nn.Module:
        """The weights that are validated, exported, evaluated and kept among the best; `self.model` by default.

        Return for example `self.ema`, an average of the weights (`torch.optim.swa_utils.AveragedModel`) that
        `prepare_training_attributes` made and `on_step_end`, which every rank is told of, updates. Within
        `validation_step`, `self.model` is what this returns; of an AveragedModel it is the module inside, with the
        names of your own. Modules that are attributes of the server are moved to the device of the model, and saved in
        each checkpoint.
        """
        return self.model  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        """Where the model and the batches are."""
        return self.fabric.device if hasattr(self, "fabric") else torch.device("cpu")

    @property
    def expected_lr_steps(self) -> int:
        """How often the `lr_scheduler` will be stepped in the whole study: what `T_max` or `total_iters` ask for.

        It stays what it was at the first start of the study, also on another number of ranks and in an evaluation.

        Raises:
            UserCodeError: nobody can know, since neither the number of updates nor that of samples is known.
        """
        num_steps = self.progress.expected_lr_steps
        if num_steps is None:
            raise UserCodeError(
                "expected_lr_steps is not known in advance: write study.time_steps and, if training.lr_clock is to be "
                '"updates", a buffer.policy or training.draws_per_sample that bounds the number of draws'
            )
        return num_steps

    def manual_backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Backpropagate the mean loss of this rank's batch; adds the gradient of the union batch to the gradients.

        In `training_step`, with `automatic_optimization = False` only; all ranks with a batch must call it alike.
        `options`, such as `retain_graph`, are those of `Tensor.backward`.
        """
        with self.phases.measure("backward"):
            if self._manual is not None:
                self._manual.backward(loss, **options)
            elif hasattr(self, "fabric"):
                raise UserCodeError(f"{type(self).__name__}.manual_backward needs automatic_optimization = False")
            else:
                loss.backward(**options)  # type: ignore[no-untyped-call]

    def take_steps(self, manual: "ManualOptimization") -> None:
        """Let this do what `manual_backward` and the steps of the optimizers are to do."""
        self._manual = manual

    @classmethod
    def check_precision(cls, precision: str) -> None:
        check_precision(precision, device_of(SoloRanks()))

    def make_collate(self, precision: str) -> TorchCollate:
        return TorchCollate(precision)

    def make_learning_rates(self) -> list[LearningRates]:
        """What steps the `lr_scheduler` and logs the rates."""
        return [LearningRates(self)]

    def make_step(self, ranks: Ranks) -> Step:
        from stream_server.server.training.torch_step import TorchStep

        if self.config is None:
            raise ConfigError("a TorchServer trains with a study's config only")
        return TorchStep(self, ranks, self.config)
