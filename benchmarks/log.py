"""The cost of logging, against the training that it observes.

The reference is ten steps of a bare torch loop with the heat study's network, at its published small scale: the least
that ten batches can cost. Ours is all that logging does meanwhile on one rank: noting each loss, then at the log point
every gauge over a full Reservoir, the reduction, and the record in TensorBoard's file, JSON lines and CSV.

    python -m benchmarks.log
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks.measure import Result, result, show
from benchmarks.step import BATCH_SIZE, CAPACITY, NUM_NODES, NUM_PARAMETERS, filled_buffer, make_model
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_own_writer, open_writers
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import (
    BufferGauge,
    InputGauge,
    Logging,
    MemoryGauge,
    RateLimited,
    SamplesGauge,
    SpeedGauge,
)

LOG_EVERY_BATCHES = 10
PHASES = (
    *("wait_for_data", "gather", "transform", "round", "step", "forward", "backward", "optimizer", "all_reduce"),
    *("validation", "checkpoint", "log"),
)
NUM_ROUNDS = 9
LOG_POINTS_PER_ROUND = 10


def results() -> Iterator[Result]:
    """log.overhead."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield overhead(Path(folder))
    finally:
        torch.set_num_threads(threads)


def overhead(folder: Path) -> Result:
    """Milliseconds of CPU time of logging and of training, in rounds of some log points each."""
    training, logged = Steps(), Logged(folder)
    pairs = []
    for _ in range(NUM_ROUNDS + 1):
        logging_s = training_s = 0.0
        for _ in range(LOG_POINTS_PER_ROUND):
            start_s = time.thread_time()
            losses = [training.take() for _ in range(LOG_EVERY_BATCHES)]
            trained_s = time.thread_time()
            logged.batches(losses)
            logging_s += time.thread_time() - trained_s
            training_s += trained_s - start_s
        pairs.append((1e3 * logging_s / LOG_POINTS_PER_ROUND, 1e3 * training_s / LOG_POINTS_PER_ROUND))
    logged.close()
    return result("log.overhead", "ms", pairs[1:])


class Steps:
    """Random rows, forward, backward, update, with nothing around it."""

    def __init__(self) -> None:
        self._model, self._optimizer = make_model()
        self._inputs = torch.rand(CAPACITY, NUM_PARAMETERS + 1)
        self._fields = torch.rand(CAPACITY, NUM_NODES)

    def take(self) -> torch.Tensor:
        """Train one batch and give its loss."""
        rows = torch.randint(CAPACITY, (BATCH_SIZE,))
        loss = functional.mse_loss(self._model(self._inputs[rows]), self._fields[rows])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss


class Logged:
    """A study's metrics, with every gauge and every file."""

    def __init__(self, folder: Path) -> None:
        buffer, self._progress, self._phases = filled_buffer(), Progress(), Phases()
        run = LoggedRun(folder=folder)
        self._metrics = Metrics(SoloRanks(), open_writers(run), own=open_own_writer(run, 0), progress=self._progress)
        names = [f"p{i}" for i in range(NUM_PARAMETERS)]
        inputs = InputGauge(buffer, parameter_names=names, parameters_of=lambda simulation: np.full(5, simulation))
        self._metrics.gauges += [
            *(BufferGauge(buffer), SpeedGauge(self._progress, self._phases), MemoryGauge()),
            *(RateLimited(SamplesGauge(buffer)), RateLimited(inputs)),
        ]
        self._logging = Logging(
            self._metrics,
            schedule=Schedule(every=LOG_EVERY_BATCHES),
            progress=self._progress,
            phases=self._phases,
        )

    def batches(self, losses: list[torch.Tensor]) -> None:
        """Do the logging of a training with these losses."""
        for phase in PHASES:
            self._phases.add(phase, 0.01)
        for loss in losses:
            self._progress.batches += 1
            self._metrics.log("train/loss", loss)
            self._metrics.log("grad/norm", loss)
            self._metrics.log("lr", 1e-3)
            self._logging.on_step_end(None)

    def close(self) -> None:
        self._metrics.close()


if __name__ == "__main__":
    show(results())
