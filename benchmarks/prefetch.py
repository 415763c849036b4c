"""The part of a slow transformation that `training.prefetch` hides behind the step.

Three trainings run in turn, from a full Reservoir and on the wall clock: one with a slow `process_batch` and batches
formed ahead, one with it and without them, and one whose batches need nothing. In `wait` steps and transformations
sleep, as they do for a GPU and a file system; in `compute` both compute, on a core each.

    python -m benchmarks.prefetch
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from scipy import fft

from benchmarks.measure import Result, alternated, show
from benchmarks.step import Ours, Server
from stream_server import StreamServer

STEP_S = 0.020
TRANSFORM_S = 0.015
NUM_TRANSFORMS = 8
NUM_PAIRS = 9


class Waiting(StreamServer):
    """A step on a device elsewhere."""

    def process_batch(self, batch: Any, config: Any) -> Any:
        return batch.parameters

    def training_step(self, batch: Any, batch_idx: int) -> float:
        time.sleep(STEP_S)
        return 0.0


class WaitingTwice(Waiting):
    """Batches that are read from somewhere."""

    def process_batch(self, batch: Any, config: Any) -> Any:
        time.sleep(TRANSFORM_S)
        return super().process_batch(batch, config)


class Transforming(Server):
    """The heat network, for fields without their high frequencies."""

    def process_batch(self, batch: Any, config: Any) -> Any:
        inputs, fields = super().process_batch(batch, config)
        for _ in range(NUM_TRANSFORMS):
            spectrum = fft.rfft(fields, axis=1)
            spectrum[:, 2500:] = 0
            fields = fft.irfft(spectrum, fields.shape[1], axis=1)
        return inputs, np.ascontiguousarray(fields)


def results() -> Iterator[Result]:
    """prefetch.hidden and prefetch.without."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kinds: dict[str, tuple[type[StreamServer], type[StreamServer]]] = {
        "wait": (Waiting, WaitingTwice),
        "compute": (Server, Transforming),
    }
    try:
        for kind, (plain, slow) in kinds.items():
            for name, prefetch in (("hidden", 1), ("without", 0)):
                with ExitStack() as stack:
                    reference, ours = Ours(stack, plain), Ours(stack, slow, prefetch=prefetch)
                    yield alternated(
                        f"prefetch.{name}.{kind}",
                        "batches/s",
                        lambda ours=ours: ours.rate(time.perf_counter),
                        lambda reference=reference: reference.rate(time.perf_counter),
                        num_pairs=NUM_PAIRS,
                    )
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    show(results())
