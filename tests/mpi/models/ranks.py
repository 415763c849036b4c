"""Run under MPI: trains every case as a study would, and writes what each rank has then, a list for each case.

The first argument is a JSON object: `steps`, the batch sizes of each rank step by step, and `cases`, for the name of
each case to train the keys of `training` in study.json. The second is the JSON file to write.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from tests.mpi.models.cases import CASES, Case, average, made, rows_of
from tests.mpi.models.plain import numbers_of
from tests.support.settings import settings
from tests.support.streams import batch_of

RANKS = ranks_from_environment()


class CaseServer(TorchServer):
    """A server class as a user would write it for a case."""

    ema: nn.Module | None = None

    def __init__(self, config: Any, case: Case) -> None:
        super().__init__(config)
        self.case = case
        self.automatic_optimization = not case.losses
        self.step = 0

    def prepare_training_attributes(self) -> Any:
        model = self.whole = made(self.case)
        optimizers = self.case.optimizers(model)
        if self.case.apart:
            model = next(model.children())
        return model, optimizers if self.case.losses else optimizers[0]

    def on_train_start(self) -> None:
        if self.case.averaged:
            self.ema = average(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.case.loss is not None:
            return self.case.loss(self.whole if self.case.apart else self.model, batch)
        for loss, optimizer in zip(self.case.losses, self.optimizer, strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss(self.model, batch))
            optimizer.step()
        return None

    def on_step_end(self) -> None:
        if isinstance(self.ema, torch.optim.swa_utils.AveragedModel):
            self.ema.update_parameters(self.model)
        self.case.after_step(self.model, self.step)
        self.step += 1


def train(case: Case, steps: list[list[int]], training: dict[str, Any]) -> dict[str, Any]:
    server = CaseServer(settings(**training), case)
    server.union_mean = UnionMean(RANKS)
    server.progress = Progress(RANKS.size)
    rows = iter(rows_of(sum(map(sum, steps))).split([size for sizes in steps for size in sizes]))
    with TorchStep(server, RANKS, server.config) as step:
        server.on_train_start()
        for index, sizes in enumerate(steps):
            own = [next(rows) for _ in sizes][RANKS.rank]
            batch = batch_of(own, len(own)) if len(own) else None
            union_batch = UnionBatch(own=batch, sizes=tuple(sizes))
            outcome = step.run(union_batch, batch and step.to_device(batch.data), index)
            server.progress.count_batch(union_batch)
            if outcome.updated:
                server.progress.count_update(outcome)
            server.on_step_end()
        step.finish()
        return asdict(numbers_of(server.whole if case.apart else server.model, server.ema))


def train_all(job: dict[str, Any]) -> dict[str, list[dict[str, Any]] | None]:
    """Train every case of a job; by case what each rank has then, on rank 0."""
    return {name: RANKS.gather(train(CASES[name], job["steps"], training)) for name, training in job["cases"].items()}


if __name__ == "__main__":
    everyone = train_all(json.loads(sys.argv[1]))
    if RANKS.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
