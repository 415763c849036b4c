"""Run under MPI: trains torch models on uneven batches and prints what each rank has then, one JSON line per job.

Each argument is a job, a JSON object: the batch sizes of each rank, step by step, and the keys of `training`.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from stream_server.server.ranks import ranks_from_environment
from stream_server.server.torch_server import TorchServer
from stream_server.server.training.lockstep import Turn
from stream_server.server.training.torch_step import TorchStep
from stream_server.server.training.union_mean import UnionMean
from tests.server.settings import settings
from tests.server.streams import batch_of

RANKS = ranks_from_environment()


class Net(TorchServer):
    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.mean_loss = self.all_reduce(loss)
        return loss


class ManualNet(Net):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizer.step()
        self.lr_scheduler.step()


class NormNet(Net):
    """Has running statistics, which differ between ranks until they are shared."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


SERVERS = {"automatic": Net, "manual": ManualNet, "norm": NormNet}


def turns(steps: list[list[int]]) -> Iterator[tuple[Turn, Any]]:
    """This rank's part of the same random union batches, whatever the number of ranks; alone it has all."""
    generator = torch.Generator().manual_seed(1)
    for sizes in steps:
        num = sum(sizes)
        x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
        y = torch.randn(num, 2, generator=generator, dtype=torch.float64)
        parts = [num] if RANKS.size == 1 else sizes
        end = sum(parts[: RANKS.rank + 1])
        rows = slice(end - parts[RANKS.rank], end)
        batch = batch_of((x[rows], y[rows]), end - rows.start) if parts[RANKS.rank] else None
        yield Turn(batch=batch, sizes=tuple(parts), num_first=0, lonely=False), batch and batch.data


def state(tensors: Iterable[torch.Tensor]) -> list[float]:
    return [value for tensor in tensors for value in tensor.detach().double().flatten().tolist()]


def train(job: dict[str, Any]) -> None:
    server = SERVERS[job.get("server", "automatic")](settings(**job.get("training", {})))
    server.union_mean = UnionMean(RANKS)
    with TorchStep(server, RANKS, server.config) as step:
        for index, (turn, data) in enumerate(turns(job["steps"])):
            step.run(turn, data, index)
        own = state(server.model.buffers())
        step.finish()
        shared = state(server.model.buffers())
        weights = state(server.model.parameters())
    everyone = RANKS.gather({"weights": weights, "own": own, "shared": shared})
    if everyone is not None:
        print(json.dumps(everyone))


for argument in sys.argv[1:]:
    train(json.loads(argument))
