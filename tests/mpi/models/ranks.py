"""Run under MPI: trains cases as a study would, and writes what each rank has then, a list for each job.

The first argument is a JSON list of jobs: `case`, its name; `steps`, the batch sizes of each rank step by step;
`training`, the keys of that section of study.json; `scale`, if the loss is to be scaled; and `is_refused`, if an error
is what is wanted. The second is the JSON file to write.
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch import turns
from stream_server.server.training.torch.learning_rates import LearningRates
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from tests.mpi.models.cases import CASES, Case, average, halved, made, rows_of
from tests.mpi.models.plain import numbers_of
from tests.support.settings import settings
from tests.support.streams import batch_of
from tests.support.torch_servers import ExactScaling

RANKS = ranks_from_environment()
UNION_MEAN = UnionMean(RANKS)
DTYPES = {"64-true": torch.float64, "32-true": torch.float32}

Job = dict[str, Any]


class CaseServer(TorchServer):
    """A server class as a user would write it for a case."""

    ema: nn.Module | None = None

    def __init__(self, config: Any, case: Case) -> None:
        super().__init__(config)
        self.case = case
        self.automatic_optimization = not case.losses
        self.step = 0

    def prepare_training_attributes(self) -> Any:
        model = self.whole = made(self.case, DTYPES[self.config.training.precision])
        optimizers = self.case.optimizers(model)
        # A model that the ranks share out cannot be copied any more.
        if self.case.averaged and self.config.training.sharding:
            self.ema = average(model)
        if self.case.apart:
            model = next(model.children())
        if self.case.losses:
            return model, optimizers
        return model, optimizers[0], halved(optimizers[0]) if self.case.scheduled else None

    def on_train_start(self) -> None:
        if self.case.averaged and self.ema is None:
            self.ema = average(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.case.loss is not None:
            loss = self.case.loss(self.whole if self.case.apart else self.model, batch)
            return self.skip_batch() if loss is None else loss
        for of_one, optimizer in zip(self.case.losses, self.optimizer, strict=True):
            optimizer.zero_grad()
            self.manual_backward(of_one(self.model, batch))
            optimizer.step()
        return None

    def on_step_end(self) -> None:
        if isinstance(self.ema, torch.optim.swa_utils.AveragedModel):
            self.ema.update_parameters(self.model)
        self.case.after_step(self.model, self.step)
        self.step += 1


def train(job: Job) -> dict[str, Any]:
    """Train as the job says; what this rank has then."""
    case, steps = CASES[job["case"]], job["steps"]
    server = CaseServer(settings(**job["training"]), case)
    server.union_mean = UNION_MEAN
    server.progress = Progress(RANKS.size)
    rates = LearningRates(server)
    dtype = DTYPES[server.config.training.precision]
    rows = iter(rows_of(sum(map(sum, steps))).to(dtype).split([size for sizes in steps for size in sizes]))
    precision = ExactScaling(job["scale"]) if "scale" in job else None
    with TorchStep(server, RANKS, server.config, precision=precision) as step:
        server.on_train_start()
        for index, sizes in enumerate(steps):
            own = [next(rows) for _ in sizes][RANKS.rank]
            batch = batch_of(own, len(own)) if len(own) else None
            union_batch = UnionBatch(own=batch, sizes=tuple(sizes))
            outcome = step.run(union_batch, batch and step.to_device(batch.data), index)
            server.progress.count_batch(union_batch)
            if outcome.updated:
                server.progress.count_update(outcome)
            rates.on_step_end(server)
            server.on_step_end()
        step.finish()
        return asdict(numbers_of(server.whole if case.apart else server.model, server.ema)) | {
            "sharded": [hasattr(it, "device_mesh") for it in server.model.parameters()]
        }


def outcome_of(job: Job) -> dict[str, Any]:
    """The result of a job on this rank, or its error if the job expects one."""
    try:
        return train(job)
    except (ConfigError, UserCodeError) as error:
        if not job.get("is_refused"):
            print(f"{job}: {error}", file=sys.stderr, flush=True)
            RANKS.abort(error.exit_code)
        # After an error the process group is left to the end of the process.
        if dist.is_initialized():
            dist.destroy_process_group()
        return {"error": str(error)}


def train_all(jobs: Sequence[Job]) -> list[list[dict[str, Any]] | None]:
    """Do the jobs; for each what every rank has then, on rank 0."""
    return [RANKS.gather(outcome_of(job)) for job in jobs]


if __name__ == "__main__":
    # A skipped update is told.
    logging.disable(logging.WARNING)
    # Each step follows the script of the one before, from which most differ.
    turns.EQUAL_PASSES = 1
    everyone = train_all(json.loads(sys.argv[1]))
    if RANKS.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
