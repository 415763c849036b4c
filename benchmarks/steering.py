"""The cost of steering, against the training beside which it happens.

The reference is ten steps of a bare torch loop with the heat study's network, at its published small scale. Ours is all
that steering does in the training process for ten batches of one rank: noting the loss of each sample, then at the log
point gathering the sums, and handing the results to the thread that talks to the sampler. What the sampler itself
computes is in a process of its own.

    python -m benchmarks.steering
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.log import LOG_EVERY_BATCHES, LOG_POINTS_PER_ROUND, NUM_ROUNDS, Steps
from benchmarks.measure import Result, result, show
from benchmarks.step import BATCH_SIZE
from stream_server.server.progress.batches import Batch, StepOutcome, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.steering.feedback import Feedback

NUM_SIMULATIONS = 50
NUM_STEPS = 100


def results() -> Iterator[Result]:
    """steering.overhead."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield overhead()
    finally:
        torch.set_num_threads(threads)


def overhead() -> Result:
    """Milliseconds of CPU time of steering and of training, in rounds of some log points each."""
    training, steered = Steps(), Steered()
    pairs = []
    for _ in range(NUM_ROUNDS + 1):
        steering_s = training_s = 0.0
        for _ in range(LOG_POINTS_PER_ROUND):
            start_s = time.thread_time()
            for _ in range(LOG_EVERY_BATCHES):
                training.take()
            trained_s = time.thread_time()
            steered.batches()
            steering_s += time.thread_time() - trained_s
            training_s += trained_s - start_s
        pairs.append((1e3 * steering_s / LOG_POINTS_PER_ROUND, 1e3 * training_s / LOG_POINTS_PER_ROUND))
    return result("steering.overhead", "ms", pairs[1:])


class Steered:
    """The feedback of a study whose batches mix many simulations."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._progress = Progress()
        self._told: Mapping[int, Any] = {}
        self._feedback = Feedback(
            SoloRanks(),
            schedule=Schedule(every=LOG_EVERY_BATCHES),
            progress=self._progress,
            ingest=self._take,
            failures=list,
        )

    def batches(self) -> None:
        """Note the losses of the batches up to a log point, and what follows there."""
        for _ in range(LOG_EVERY_BATCHES):
            keys = np.stack([self._random.integers(it, size=BATCH_SIZE) for it in (NUM_SIMULATIONS, NUM_STEPS)])
            batch = Batch(data=None, size=BATCH_SIZE, keys=keys, is_first=np.zeros(BATCH_SIZE, bool))
            losses = torch.rand(BATCH_SIZE)
            self._feedback.scores.note(batch, StepOutcome(loss=0.5, sample_losses=losses))
            self._progress.count_batch(UnionBatch(own=None, sizes=(BATCH_SIZE,)))
            self._feedback.on_round(None)

    def _take(self, results: Mapping[int, Any]) -> None:
        self._told = results


if __name__ == "__main__":
    show(results())
