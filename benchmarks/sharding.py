"""The memory and the speed of a model that the ranks share out, against FSDP2 of torch in a bare loop.

Both train a perceptron of 24 blocks, each a unit, by a fused Adam, with the same batches from memory, on 1, 2 and 4
ranks of one thread. Memory is what a process of its own needs at most with 400 MB of weights, beyond what it had with
all modules imported: in all, with the model that was whole at first, and in the steps alone. Speed is steps per second
of wall time with 100 MB of weights, of the slowest rank, in turn in the same processes, once the ranks know what a step
does; the same with 2 MB of weights (`small`) shows what a step costs beside its work.

    python -m benchmarks.sharding [NUMBER OF RANKS …]
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from benchmarks.measure import Result, result, show
from stream_server import TorchServer
from stream_server.server.progress.batches import Batch, StepCounts, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks, ranks_from_environment
from stream_server.server.training.torch.devices import TorchGroup
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.training.torch.turns import EQUAL_PASSES
from tests.support.settings import settings

RANKS = (1, 2, 4)
NUM_BLOCKS = 24
WIDTHS = {"memory": 2048, "step": 1024, "small": 144}
STEPS_PER_ROUND = {"step": 1, "small": 3}
BATCH_SIZE = 16
NUM_PAIRS = 9
NUM_RUNS = 3
NUM_STEPS = 3
NUM_BATCHES = 4
SHARDING = {"kind": "full", "blocks": ["Block"]}


def results(all_ranks: Sequence[int] = RANKS) -> Iterator[Result]:
    """By the number of ranks sharding.memory, its steps, sharding.step and sharding.small."""
    for num in all_ranks:
        pairs = [[_on_ranks(num, "memory", which) for which in ("ours", "bare")] for _ in range(NUM_RUNS)]
        for index, name in enumerate((f"sharding.memory.{num}", f"sharding.memory.{num}.steps")):
            yield result(name, "MB", [(ours[index], bare[index]) for ours, bare in pairs])
        yield from speeds(num)


def speeds(num_ranks: int = 2) -> Iterator[Result]:
    for size in STEPS_PER_ROUND:
        yield result(f"sharding.{size}.{num_ranks}", "steps/s", _on_ranks(num_ranks, "speed", size))


def _on_ranks(num_ranks: int, *words: str) -> Any:
    """What rank 0 prints."""
    python = Path(sys.executable)
    argv = [python.parent / "mpirun", "-n", str(num_ranks), python, "-m", "benchmarks.sharding", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=1800)
    if ran.returncode:
        raise RuntimeError(f"{words} on {num_ranks} ranks ended with {ran.returncode}: {ran.stderr}")
    return json.loads(ran.stdout)


class Block(nn.Module):
    """A layer with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.gelu(self.layer(x))


def make_model(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(Block(width) for _ in range(NUM_BLOCKS)))
    return model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return functional.mse_loss(model(inputs), targets)


class Server(TorchServer):
    """A server class as a user would write it."""

    width = 0

    def prepare_training_attributes(self) -> Any:
        return make_model(self.width)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return loss_of(self.model, batch)


class Ours:
    """The step of a TorchServer, and what the loop does with its outcome."""

    def __init__(self, stack: ExitStack, ranks: Ranks, width: int) -> None:
        self._server = Server(settings(precision="32-true", sharding=SHARDING))
        self._server.width = width
        self._server.progress = Progress(ranks.size)
        self._ranks = ranks
        self._batches = some_batches(ranks.rank, width)
        self._step = stack.enter_context(TorchStep(self._server, ranks, self._server.config))

    def train(self, num_steps: int) -> None:
        step, progress = self._step, self._server.progress
        sizes = (BATCH_SIZE,) * self._ranks.size
        for index in range(num_steps):
            batch = self._batches[index % len(self._batches)]
            union_batch = UnionBatch(own=batch, sizes=sizes, counts=StepCounts(num_first=BATCH_SIZE))
            outcome = step.run(union_batch, step.to_device(batch.data), progress.batches)
            progress.count_batch(union_batch)
            progress.count_update(outcome)


class Bare:
    """A bare training loop as in the FSDP2 tutorial."""

    def __init__(self, stack: ExitStack, ranks: Ranks, width: int) -> None:
        if not torch.distributed.is_initialized():
            stack.enter_context(TorchGroup(ranks, backend="gloo", shared=Path(), even_alone=True))
        torch.manual_seed(0)
        model, _ = make_model(width)
        mesh = init_device_mesh("cpu", (ranks.size,))
        for block in model.children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
        self._batches = some_batches(ranks.rank, width)

    def train(self, num_steps: int) -> None:
        for index in range(num_steps):
            loss = loss_of(self._model, self._batches[index % len(self._batches)].data)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


def some_batches(rank: int, width: int) -> list[Batch]:
    """Random ones; a rank has its own."""
    generator = torch.Generator().manual_seed(rank)
    return [
        Batch(
            data=tuple(torch.rand(BATCH_SIZE, width, generator=generator) for _ in range(2)),
            size=BATCH_SIZE,
            keys=np.zeros((2, BATCH_SIZE), np.int64),
            is_first=np.ones(BATCH_SIZE, bool),
        )
        for _ in range(NUM_BATCHES)
    ]


def memory(which: str) -> None:
    """On each rank; rank 0 prints the megabytes of the rank that needs most, in all and in the steps."""
    ranks = ranks_from_environment()
    before = _memory_kb("VmRSS")
    with ExitStack() as stack:
        trained = (Ours if which == "ours" else Bare)(stack, ranks, WIDTHS["memory"])
        trained.train(1)
        whole = _memory_kb("VmHWM") - before
        # From here on the peak is that of the steps.
        Path("/proc/self/clear_refs").write_text("5")
        trained.train(NUM_STEPS)
        everyone = ranks.gather((whole, _memory_kb("VmHWM") - before))
    if everyone is not None:
        print(json.dumps([max(column) / 1024 for column in zip(*everyone, strict=True)]))


def _memory_kb(key: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(f"{key}:"))


def speed(size: str) -> None:
    """On each rank; rank 0 prints the pairs of rates."""
    ranks = ranks_from_environment()
    with ExitStack() as stack:
        # First ours, which opens the process group.
        both = [kind(stack, ranks, WIDTHS[size]) for kind in (Ours, Bare)]
        for each, num_steps in zip(both, (EQUAL_PASSES, 1), strict=True):
            each.train(num_steps)
        pairs = []
        for number in range(NUM_PAIRS):
            order = (0, 1) if number % 2 else (1, 0)
            rates = {which: _rate(ranks, both[which], STEPS_PER_ROUND[size]) for which in order}
            pairs.append((rates[0], rates[1]))
    if ranks.rank == 0:
        print(json.dumps(pairs))


def _rate(ranks: Ranks, trained: Ours | Bare, num_steps: int) -> float:
    ranks.barrier()
    start_s = time.perf_counter()
    trained.train(num_steps)
    ranks.barrier()
    return num_steps / (time.perf_counter() - start_s)


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2])
    elif sys.argv[1:2] == ["speed"]:
        speed(sys.argv[2])
    else:
        show(results([int(word) for word in sys.argv[1:]] or RANKS))
