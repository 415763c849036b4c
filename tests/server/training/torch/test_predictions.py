"""The predictions of held-out samples: the forward pass of `validation_step` is not repeated where it is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server import TorchServer
from stream_server.config.training_sections import ValidationSettings
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.training.validation.validation import Validation
from stream_server.server.training.validation.validation_record import ValidationRecord
from stream_server.server.user.callbacks import Callbacks
from tests.server.training.validation.validating import held_out
from tests.support.settings import settings

NUM_BATCHES = 2


class Counting(nn.Linear):
    """Counts its forward passes."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.num = 0

    def forward(self, values: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        self.num += 1
        return super().forward(values) + shift


class Server(TorchServer):
    parameter_names = ("p",)

    def prepare_training_attributes(self) -> Any:
        model = Counting()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def process_batch(self, batch: Any, config: Any) -> Any:
        return np.array(batch.time_steps[:, None], np.float32), np.array(batch.fields["x"][:, None], np.float32)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch[0]) - batch[1]).square().mean()


class Clipping(Server):
    """Changes what the model gave."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch[0]).clamp_(min=1e9) - batch[1]).square().mean()


class Shifting(Server):
    """Has the model do something else than `predict`."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch[0], shift=1e9) - batch[1]).square().mean()


class Scaling(Server):
    """Changes what the model is given, after it was."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().validation_step(batch, batch_idx)
        batch[0].mul_(1e9)
        return loss


class Inferring(Server):
    """In a mode in which torch does not note changes."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.inference_mode():
            return super().validation_step(batch, batch_idx)


class Ensemble(Server):
    """Calls the model with the weights of several members at once."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        members = {name: torch.stack([weight, weight]) for name, weight in self.model.named_parameters()}
        call = torch.func.vmap(lambda weights: torch.func.functional_call(self.model, weights, (batch[0],)))
        return (call(members) - batch[1]).square().mean()


CASES = {Server: 1, Clipping: 2, Shifting: 2, Scaling: 2, Inferring: 2, Ensemble: 2}


@pytest.mark.parametrize(("kind", "passes"), CASES.items(), ids=lambda it: getattr(it, "__name__", it))
def test_the_forward_pass_of_validation_step_is_repeated_only_where_it_must_be(
    kind: type[Server], passes: int, tmp_path: Path
) -> None:
    server, ranks = kind(settings(precision="32-true")), SoloRanks()
    raw = held_out([0.5 * number for number in range(NUM_BATCHES * 5)])
    with TorchStep(server, ranks, server.config) as step:
        validation = Validation(
            server,
            ranks,
            Callbacks(server),
            step,
            held_out=lambda: raw,
            settings=ValidationSettings(batch_size=5),
            progress=Progress(),
            metrics=Metrics(ranks),
            record=ValidationRecord(tmp_path, server, ranks, num=2, facts={}),
        )
        assert "loss" in validation.run()
        assert server.model.num == passes * NUM_BATCHES
        inputs, targets = server.process_batch(raw.batch(), None)
        if kind is Scaling:
            inputs *= 1e9
        outputs = server.model(torch.from_numpy(inputs)).detach().numpy()
    kept = np.load(next(tmp_path.iterdir()))
    np.testing.assert_allclose(kept["errors"], np.square(outputs - targets).mean(axis=1), rtol=1e-4)
    assert server.model(torch.zeros(1, 1)).shape == (1, 1)
    assert not server.model._forward_hooks
