"""The cost of the control round per batch: under mpirun, on ranks that always have a batch and do nothing with it.

The value is µs per round, the reference a step of 10 ms, so the ratio is the round's share of it. Ranks that
outnumber the cores also wait for each other's turn on them.

    python -m benchmarks.round
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, alternated, show
from stream_server.errors import Closed
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.control_round import in_lockstep

NUM_RANKS = (2, 4, 8)
NUM_ROUNDS = 15
BATCHES_PER_ROUND = 500
STEP_US = 10_000.0


def results() -> Iterator[Result]:
    """round.{2,4,8}."""
    for num_ranks in NUM_RANKS:
        durations = iter(_measured(num_ranks))
        yield alternated(f"round.{num_ranks}", "µs", lambda it=durations: next(it), lambda: STEP_US, NUM_ROUNDS)


class Ready:
    """A stream with so many batches, all there."""

    def __init__(self, num: int) -> None:
        self._batch = Batch(data=None, size=10, keys=np.zeros((2, 10), np.int64), is_first=np.ones(10, bool))
        self._num = num

    def draw(self, timeout_s: float) -> Batch:
        if not self._num:
            raise Closed("no batch is left")
        self._num -= 1
        return self._batch

    def release(self) -> None:
        pass

    def quiesce(self) -> None:
        pass


def measure() -> None:
    """On each rank; rank 0 prints the µs of each series of control rounds."""
    ranks = ranks_from_environment()
    for _ in range(NUM_ROUNDS + 1):
        ranks.barrier()
        start_s = time.perf_counter()
        for _ in in_lockstep(Ready(BATCHES_PER_ROUND), ranks, StopRequests(), phases=Phases()):
            pass
        if ranks.rank == 0:
            print((time.perf_counter() - start_s) / BATCHES_PER_ROUND * 1e6, flush=True)


def _measured(num_ranks: int) -> list[float]:
    python = Path(sys.executable)
    argv = [python.parent / "mpirun", "-n", str(num_ranks), python, "-m", "benchmarks.round", "rank"]
    run = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, env=os.environ, timeout=300)
    return [float(line) for line in run.stdout.split()]


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        measure()
    else:
        show(results())
