"""Run under MPI: trains torch models on uneven batches and prints what each rank has then, one JSON line per job.

Each argument is a job, a JSON object: the batch sizes of each rank, step by step, and the keys of `training`. Models
are compiled without g++, which takes a minute of each rank and is no part of ours.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters

from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch import precision as precision_of_torch
from stream_server.server.training.torch.learning_rates import LearningRates
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of
from tests.support.torch_servers import ExactScaling, norms

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

    def buffers(self) -> list[float]:
        return state(self.model.buffers())


class ManualNet(Net):
    """One optimizer for each layer, and a schedule for the second."""

    automatic_optimization = False

    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.1)]
        return model, optimizers, torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=1, gamma=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in self.optimizer:
            optimizer.step()
            optimizer.zero_grad()


class ClippingNet(Net):
    """Clips by itself what `clip_norm` would clip, and keeps the norms of all updates."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.found: list[float] = []
        self.hold_attributes(tell_gradients=self.on_gradients)

    def on_gradients(self, model: nn.Module) -> None:
        self.found += self.gradient_norms().values()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    def buffers(self) -> list[float]:
        return self.found


class NormNet(Net):
    """Has running statistics, in the model and beside it, which differ between ranks until they are shared."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.targets = nn.BatchNorm1d(2, affine=False, dtype=torch.float64)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return nn.functional.mse_loss(self.model(x), self.targets(y))

    def buffers(self) -> list[float]:
        return super().buffers() + state(self.targets.buffers())


class TargetNet(Net):
    """Has targets of its own, which learn from the batch of each rank."""

    def prepare_training_attributes(self) -> Any:
        self.targets = nn.ModuleList([nn.Linear(3, 2).requires_grad_(False), nn.Linear(3, 2).requires_grad_(False)])
        self.mean = torch.zeros(2)
        made = super().prepare_training_attributes()
        made[0].order = np.random.default_rng().permutation(1000)
        next(made[0].parameters()).register_hook(torch.clone)
        return made

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.targets[1].bias.mul_(0.9).add_(0.1 * y.mean(0))
        self.mean = y.mean(0)
        if not hasattr(self.model, "points"):
            self.model.points = torch.rand(3)
        self.model.last = x
        return super().training_step((x, y + 0.1 * self.targets[1](x)), batch_idx)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "num": self.rank}


class FusedNet(Net):
    """Of its second update the loss of the lowest rank is not finite; its optimizer skips that by itself."""

    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if batch_idx == 1 and self.rank == 0 else loss


SERVERS = {
    "automatic": Net,
    "fused": FusedNet,
    "manual": ManualNet,
    "clipping": ClippingNet,
    "norm": NormNet,
    "target": TargetNet,
}


def union_batches(steps: list[list[int]]) -> Iterator[tuple[UnionBatch, Any]]:
    """This rank's part of the union batches, whatever the number of ranks; alone it has all.

    Sample number i is the same however the samples are dealt to steps and ranks.
    """
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(sum(map(sum, steps)), 5, generator=generator, dtype=torch.float64)
    for union, sizes in zip(samples.split([sum(sizes) for sizes in steps]), steps, strict=True):
        parts = [len(union)] if RANKS.size == 1 else sizes
        rows = union.split(parts)[RANKS.rank]
        batch = batch_of((rows[:, :3], rows[:, 3:]), len(rows)) if len(rows) else None
        yield UnionBatch(own=batch, sizes=tuple(parts)), batch and batch.data


@contextmanager
def counted_reductions() -> Iterator[list[int]]:
    """A list to which each all-reduce of torch's adds the size of its array."""
    counted: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        counted.append(tensor.numel())
        return all_reduce(tensor, *arguments, **options)

    with patch.object(dist, "all_reduce", counting):
        yield counted


def state(tensors: Iterable[torch.Tensor]) -> list[float]:
    return [value for tensor in tensors for value in tensor.detach().double().flatten().tolist()]


def train(job: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Do a job; on rank 0 what every rank has then."""
    counters.clear()
    server = SERVERS[job.get("server", "automatic")](settings(**job.get("training", {})))
    server.union_mean = UnionMean(RANKS)
    server.progress = Progress(RANKS.size)
    precision = ExactScaling(job["scale"]) if "scale" in job else None
    rates = LearningRates(server)
    with (
        patch.object(torch, "compile", partial(torch.compile, backend="eager")),
        # As on a GPU.
        patch.object(precision_of_torch, "_is_waited_for", lambda _: True),
        counted_reductions() as reductions,
        TorchStep(server, RANKS, server.config, precision=precision) as step,
    ):
        outcomes: list[StepOutcome | None] = []
        for index, (union_batch, data) in enumerate(union_batches(job["steps"])):
            outcome = step.run(union_batch, data, index)
            outcomes.append(outcome)
            server.progress.count_batch(union_batch)
            if outcome.updated:
                server.progress.count_update(outcome)
            rates.on_step_end(server)
        own = server.buffers()
        outcomes.append(step.finish())
        shared = server.buffers()
        step.compare_saved()
        weights = state(server.model.parameters())
        saved = step.state_dict()
        step.load_state_dict(saved)
        is_same = to_bytes(step.state_dict()) == to_bytes(saved)
    found = {
        "weights": weights,
        "norms": norms(outcomes),
        "num_reductions": len(reductions),
        "own": own,
        "shared": shared,
        "warnings": list(step.warnings),
        "names": list(server.model.state_dict()),
        "num_optimizers": len(saved["optimizers"]),
        "comes_back": is_same,
        "num_graphs": counters["stats"]["unique_graphs"],
    }
    return RANKS.gather(found)


if __name__ == "__main__":
    # Warnings are among the results.
    logging.disable(logging.WARNING)
    for argument in sys.argv[1:]:
        everyone = train(json.loads(argument))
        if everyone is not None:
            print(json.dumps(everyone))
