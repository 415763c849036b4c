"""The cost of our step, against bare torch DDP: two ranks under mpirun, one batch each at every step.

Both train the heat study's network at its published small scale on one thread per rank, with the same batches from
memory. Ours is the whole step of a TorchServer: forward, backward, norm of the gradient and finite check, update,
counters, phases and log. The reference is a forward through DistributedDataParallel, backward, update. The control
round of the ranks is not in it, whose waiting takes CPU time; the benchmark `round` measures that. The figure is steps
per second of CPU time, mean of the ranks.

`--sizes` compares the wall time of a step, and its CPU time (`cpu`), for networks of 1, 10 and 100 MB of float32
weights (four square layers, batches of 10, Adam), where DDP reduces gradients while backward computes others: with two
ranks, or RANKS, on this node, and with half of them in each of two network namespaces, where Gloo has nothing but TCP
over a virtual cable (needs root; MPI's one small sum for each step goes through shared memory in both).

    python -m benchmarks.ddp [--sizes [RANKS]]
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Result, result, show
from benchmarks.step import BATCH_SIZE, NUM_NODES, NUM_PARAMETERS, make_model
from stream_server import TorchServer
from stream_server.server.progress.batches import Batch, StepCounts, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks, ranks_from_environment
from stream_server.server.training.torch.step import TorchStep
from tests.faults.network.node import Node
from tests.support.settings import settings

NUM_RANKS = 2
MEGABYTES = (1, 10, 100)
NUM_LAYERS = 4
SIZED_PAIRS = 11
NUM_PAIRS = 21
STEPS_PER_ROUND = 20
NUM_BATCHES = 8


def results() -> Iterator[Result]:
    """ddp.overhead."""
    pairs = json.loads(under_mpirun("benchmarks.ddp", NUM_RANKS))
    yield result("ddp.overhead", "steps/s", [(ours, bare) for ours, bare in pairs])


def results_of_sizes(num_ranks: int = NUM_RANKS) -> Iterator[Result]:
    """ddp.{node,tcp}.{1,10,100}MB, and the same of CPU time with `.cpu`."""
    for size in MEGABYTES:
        program = [sys.executable, "-m", "benchmarks.ddp", "rank", str(size)]
        yield from _results_of_size(f"ddp.node.{size}MB", ["-n", str(num_ranks), *program])
        half = ["-n", str(num_ranks // 2)]
        with Node() as node:
            here, there = node.ends
            ranks = [*half, *_by(here), *program, ":", *half, *node.command(*_by(there), *program)]
            yield from _results_of_size(f"ddp.tcp.{size}MB", ranks)


def under_mpirun(module: str, num_ranks: int) -> str:
    """The output of `python -m MODULE rank` on rank 0."""
    return _mpirun(["-n", str(num_ranks), sys.executable, "-m", module, "rank"])


def _results_of_size(name: str, ranks: list[str]) -> Iterator[Result]:
    turns = json.loads(_mpirun(ranks))
    for kind, clock in enumerate(("", ".cpu")):
        yield result(name + clock, "steps/s", [(ours[kind], bare[kind]) for ours, bare in turns])


def _by(interface: str) -> list[str]:
    return ["env", f"GLOO_SOCKET_IFNAME={interface}"]


def _mpirun(ranks: list[str]) -> str:
    argv = [str(Path(sys.executable).parent / "mpirun"), *ranks]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=600)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


class Server(TorchServer):
    """A server class as a user would write it."""

    make_model = staticmethod(make_model)

    def prepare_training_attributes(self) -> Any:
        return self.make_model()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, fields = batch
        return functional.mse_loss(self.model(inputs), fields)


def width_of(megabytes: int) -> int:
    """The width of the layers of a network of this size."""
    return isqrt(megabytes * 250_000 // NUM_LAYERS)


def make_sized_model(megabytes: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    width = width_of(megabytes)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def some_batches(rank: int, widths: tuple[int, int] = (NUM_PARAMETERS + 1, NUM_NODES)) -> list[Batch]:
    """Random ones; a rank has its own."""
    generator = torch.Generator().manual_seed(rank)
    keys = np.zeros((2, BATCH_SIZE), np.int64)
    return [
        Batch(
            data=tuple(torch.rand(BATCH_SIZE, width, generator=generator) for width in widths),
            size=BATCH_SIZE,
            keys=keys,
            is_first=np.ones(BATCH_SIZE, bool),
        )
        for _ in range(NUM_BATCHES)
    ]


class Ours:
    """The step of a TorchServer, and what the loop does with its outcome."""

    def __init__(
        self, stack: ExitStack, ranks: Ranks, batches: Sequence[Batch], server_class: type[Server] = Server
    ) -> None:
        self._server = server_class(settings(precision="32-true"))
        self._ranks = ranks
        self._batches = batches
        self._step = stack.enter_context(TorchStep(self._server, ranks, self._server.config))

    def train(self, num_steps: int = STEPS_PER_ROUND) -> None:
        server, step = self._server, self._step
        server.progress = progress = Progress(self._ranks.size)
        sizes = (BATCH_SIZE,) * self._ranks.size
        for index in range(num_steps):
            batch = self._batches[index % len(self._batches)]
            union_batch = UnionBatch(own=batch, sizes=sizes, counts=StepCounts(num_first=BATCH_SIZE))
            outcome = step.run(union_batch, step.to_device(batch.data), progress.batches)
            progress.count_batch(union_batch)
            progress.count_update(outcome)
            server.log("train/loss", outcome.loss)


class Bare:
    """DDP with nothing around it."""

    def __init__(
        self, batches: Sequence[Batch], make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]] = make_model
    ) -> None:
        torch.manual_seed(0)
        model, self._optimizer = make()
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._batches = batches

    def train(self, num_steps: int = STEPS_PER_ROUND) -> None:
        for index in range(num_steps):
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


def measure_size(megabytes: int) -> None:
    """On each rank, for a network of this size: steps per second of wall time and of CPU time, of ours and of DDP."""
    ranks = ranks_from_environment()
    torch.set_num_threads(1)
    batches = some_batches(ranks.rank, (width_of(megabytes),) * 2)
    make = partial(make_sized_model, megabytes)
    server_class = type("SizedServer", (Server,), {"make_model": staticmethod(make)})
    num_steps = max(4, 40 // megabytes)
    with ExitStack() as stack:
        ours, bare = Ours(stack, ranks, batches, server_class), Bare(batches, make)
        pairs = []
        for turn in range(-1, SIZED_PAIRS):
            both = [ours.train, bare.train]
            order = (0, 1) if turn % 2 else (1, 0)
            rates = {which: _rates(ranks, partial(both[which], num_steps), num_steps) for which in order}
            pairs.append((rates[0], rates[1]))
    if ranks.rank == 0:
        print(json.dumps(pairs[1:]))


def _rates(ranks: Ranks, train: Callable[[], None], num_steps: int) -> tuple[float, float]:
    """Steps per second of wall time, and of CPU time, mean of the ranks."""
    ranks.barrier()
    start_s, before_s = time.perf_counter(), time.process_time()
    train()
    total_s = ranks.all_reduce(np.array([time.process_time() - before_s]))
    return num_steps / (time.perf_counter() - start_s), float(num_steps * ranks.size / total_s[0])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rank"]:
            measure()
        case ["rank", size]:
            measure_size(int(size))
        case ["--sizes", *num_ranks]:
            show(results_of_sizes(*map(int, num_ranks)))
        case _:
            show(results())
