"""Torch servers of one weight, whose training can be followed by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.precision import LossScaling, Scaler
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from tests.support.streams import batch_of


class Scale(TorchServer):
    """One weight, which is 1 at first; the loss is weight × mean of the batch, so its gradient is that mean."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch).mean()


class ExactScaling(LossScaling):
    """Loss scaling alone, without arithmetic in 16 bits."""

    def __init__(self, init_scale: float) -> None:
        scaler = Scaler("cpu", init_scale=init_scale, growth_interval=10**6)
        super().__init__(torch.device("cpu"), scaler)

    def forward_context(self) -> Any:
        return torch.enable_grad()

    def convert(self, data: Any) -> Any:
        return data


def union_batch_of(values: Sequence[float], first_step: int = 0) -> tuple[UnionBatch, Any]:
    """A step of one rank on these values; they are those of consecutive time steps of simulation 7."""
    data = torch.tensor(values, dtype=torch.float64)[:, None]
    batch = batch_of(data, len(values))
    batch.keys[:] = np.array([np.full(len(values), 7), first_step + np.arange(len(values))])
    return UnionBatch(own=batch, sizes=(len(values),), counts=StepCounts(num_first=len(values))), data


def train(server: TorchServer, batches: Sequence[Sequence[float]], **options: Any) -> list[StepOutcome | None]:
    """Train on the batches; the outcome of each step, and of the end."""
    with TorchStep(server, SoloRanks(), server.config, **options) as step:
        outcomes: list[StepOutcome | None] = [
            step.run(union_batch, step.to_device(server.collate.convert(data)), index)
            for index, (union_batch, data) in enumerate(map(union_batch_of, batches))
        ]
        return [*outcomes, step.finish()]


def norms(outcomes: Sequence[StepOutcome | None]) -> list[float]:
    """The norm of the gradient of each update that was made."""
    return [it.gradient_norm for it in outcomes if it is not None and it.gradient_norm is not None]


def weight(server: TorchServer) -> float:
    value: float = server.model.weight.item()
    return value
