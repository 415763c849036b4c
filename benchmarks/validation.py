"""The cost of a validation, against a bare loop over the same batches with the same model.

Both evaluate the heat study's network at its published small scale, in eval mode, without gradients and on one thread,
on held-out samples that lie in memory, in batches of 10, and count batches per second of CPU time. Ours is the whole
way: take and transform the rows, agree on each batch, call `validation_step`, take the exact means; with `predictions`
as it is shipped, the error of each sample and a few predictions are kept, too. The reference slices tensors that are
ready, and adds up the losses.

    python -m benchmarks.validation
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.measure import Result, alternated, show
from benchmarks.step import BATCH_SIZE, NUM_NODES, NUM_PARAMETERS, Server, make_model
from stream_server.config.training_sections import ValidationSettings
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.validation.validation import Validation
from stream_server.server.training.validation.validation_batches import HeldOut, HeldOutSamples
from stream_server.server.training.validation.validation_record import ValidationRecord
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import framework_of
from tests.support.settings import settings

NUM_SAMPLES = 500
NUM_PAIRS = 21
NUM_PREDICTIONS = 4


def results() -> Iterator[Result]:
    """validation.overhead and validation.predictions."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as stack:
            bare = Bare()
            for name, num in (("overhead", 0), ("predictions", NUM_PREDICTIONS)):
                ours = Ours(stack, num)
                yield alternated(f"validation.{name}", "batches/s", ours.one_round, bare.one_round, num_pairs=NUM_PAIRS)
    finally:
        torch.set_num_threads(threads)


def held_out() -> HeldOut:
    """The steps of five simulations."""
    rng = np.random.default_rng(1)
    parameters, store = rng.random((5, NUM_PARAMETERS)), ValidationStore(5)
    for number, field in enumerate(rng.random((NUM_SAMPLES, NUM_NODES), np.float32)):
        store.add(number // 100, number % 100, {"field": field}, {"field": True})
    for simulation in range(5):
        store.complete(simulation)
    found = HeldOutSamples(store=store, parameters_of=parameters.__getitem__)()
    assert found is not None
    return found


class Validated(Server):
    """A server class as a user would write it."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.training_step(batch, batch_idx)


class Ours:
    """A validation of all samples each round."""

    def __init__(self, stack: ExitStack, num_predictions: int) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        ranks, server = SoloRanks(), Validated(settings(precision="32-true"))
        samples = held_out()
        self._validation = Validation(
            server,
            ranks,
            Callbacks(server),
            stack.enter_context(framework_of(server).make_step(server, ranks)),
            held_out=lambda: samples,
            settings=ValidationSettings(batch_size=BATCH_SIZE),
            progress=Progress(),
            metrics=Metrics(ranks),
            record=ValidationRecord(folder, server, ranks, num=num_predictions, facts={}),
        )

    def one_round(self) -> float:
        return _rate(self._validation.run)


class Bare:
    """Slices of tensors, forward, sum, with nothing around it."""

    def __init__(self) -> None:
        self._model, _ = make_model()
        samples = held_out().batch()
        inputs = np.column_stack((samples.parameters, samples.time_steps)).astype(np.float32)
        self._inputs, self._fields = torch.from_numpy(inputs), torch.from_numpy(samples.fields["field"])

    def one_round(self) -> float:
        return _rate(self._evaluate)

    def _evaluate(self) -> float:
        self._model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, NUM_SAMPLES, BATCH_SIZE):
                rows = slice(start, start + BATCH_SIZE)
                total += functional.mse_loss(self._model(self._inputs[rows]), self._fields[rows]).item()
        return total * BATCH_SIZE / NUM_SAMPLES


def _rate(validate: Callable[[], object]) -> float:
    start_s = time.process_time()
    validate()
    return NUM_SAMPLES / BATCH_SIZE / (time.process_time() - start_s)


if __name__ == "__main__":
    show(results())
