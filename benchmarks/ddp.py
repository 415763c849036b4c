"""The cost of our step, against bare torch DDP: two ranks under mpirun, one batch each at every step.

Both train the heat study's network at its published small scale on one thread per rank, with the same batches from
memory. Ours is the whole step of a TorchServer: forward, backward, norm of the gradient and finite check, update,
counters, phases and log. The reference is a forward through DistributedDataParallel, backward, update. The control
round of the ranks is not in it, whose waiting takes CPU time; the benchmark `round` measures that. The figure is steps
per second of CPU time, mean of the ranks.

    python -m benchmarks.ddp
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Result, result, show
from benchmarks.step import BATCH_SIZE, NUM_NODES, NUM_PARAMETERS, make_model
from stream_server import TorchServer
from stream_server.server.progress.batches import Batch, StepCounts, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks, ranks_from_environment
from stream_server.server.training.torch.step import TorchStep
from tests.support.settings import settings

NUM_RANKS = 2
NUM_PAIRS = 21
STEPS_PER_ROUND = 20
NUM_BATCHES = 8


def results() -> Iterator[Result]:
    """ddp.overhead."""
    pairs = json.loads(under_mpirun("benchmarks.ddp", NUM_RANKS))
    yield result("ddp.overhead", "steps/s", [(ours, bare) for ours, bare in pairs])


def under_mpirun(module: str, num_ranks: int) -> str:
    """The output of `python -m MODULE rank` on rank 0."""
    python = Path(sys.executable)
    argv = [python.parent / "mpirun", "-n", str(num_ranks), python, "-m", module, "rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=600)
    if ran.returncode:
        raise RuntimeError(f"{module} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


class Server(TorchServer):
    """A server class as a user would write it."""

    def prepare_training_attributes(self) -> Any:
        return make_model()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, fields = batch
        return functional.mse_loss(self.model(inputs), fields)


def some_batches(rank: int) -> list[Batch]:
    """Random ones; a rank has its own."""
    generator = torch.Generator().manual_seed(rank)
    keys = np.zeros((2, BATCH_SIZE), np.int64)
    return [
        Batch(
            data=tuple(torch.rand(BATCH_SIZE, width, generator=generator) for width in (NUM_PARAMETERS + 1, NUM_NODES)),
            size=BATCH_SIZE,
            keys=keys,
            is_first=np.ones(BATCH_SIZE, bool),
        )
        for _ in range(NUM_BATCHES)
    ]


class Ours:
    """The step of a TorchServer, and what the loop does with its outcome."""

    def __init__(self, stack: ExitStack, ranks: Ranks, batches: Sequence[Batch]) -> None:
        self._server = Server(settings(precision="32-true"))
        self._ranks = ranks
        self._batches = batches
        self._step = stack.enter_context(TorchStep(self._server, ranks, self._server.config))

    def train(self) -> None:
        server, step = self._server, self._step
        server.progress = progress = Progress(self._ranks.size)
        sizes = (BATCH_SIZE,) * self._ranks.size
        for index in range(STEPS_PER_ROUND):
            batch = self._batches[index % len(self._batches)]
            union_batch = UnionBatch(own=batch, sizes=sizes, counts=StepCounts(num_first=BATCH_SIZE))
            outcome = step.run(union_batch, step.to_device(batch.data), progress.batches)
            progress.count_batch(union_batch)
            progress.count_update(outcome)
            server.log("train/loss", outcome.loss)


class Bare:
    """DDP with nothing around it."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        torch.manual_seed(0)
        model, self._optimizer = make_model()
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._batches = batches

    def train(self) -> None:
        for index in range(STEPS_PER_ROUND):
            inputs, fields = self._batches[index % len(self._batches)].data
            loss = functional.mse_loss(self._model(inputs), fields)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()


def measure() -> None:
    """On each rank; rank 0 prints the pairs of rates."""
    ranks = ranks_from_environment()
    batches = some_batches(ranks.rank)
    with ExitStack() as stack:
        # First ours, which opens the process group.
        ours, bare = Ours(stack, ranks, batches), Bare(batches)
        both = (ours.train, bare.train)
        pairs = []
        for union_batch in range(-1, NUM_PAIRS):
            order = (0, 1) if union_batch % 2 else (1, 0)
            rates = {which: _rate(ranks, both[which]) for which in order}
            pairs.append((rates[0], rates[1]))
    if ranks.rank == 0:
        print(json.dumps(pairs[1:]))


def _rate(ranks: Ranks, train: Callable[[], None]) -> float:
    ranks.barrier()
    start_s = time.process_time()
    train()
    total_s = ranks.all_reduce(np.array([time.process_time() - start_s]))
    return float(STEPS_PER_ROUND * ranks.size / total_s[0])


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        measure()
    else:
        show(results())
