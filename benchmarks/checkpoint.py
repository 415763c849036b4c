"""The cost of a checkpoint in training time, disk and memory.

`stall` is the training time that one checkpoint costs: batches are trained until it is committed and its predecessor
removed, then as many without one; the difference of the two is what was lost, by standing still and by sharing the
machine with the thread that writes. `capture` is the standing still alone. The reference of both is a copy of as many
bytes into memory that is there already: what a checkpoint would cost that copied everything at once. The training
draws from 256 MiB and computes in the cache of one core; `.torch` is the heat study's network, which with its
optimizer streams 40 MB through the memory in each step and is saved too.
`write` is the real saver, from the capture to the committed checkpoint, against one file that is written and fsynced.
`memory` is by how much a process grows while it saves: see `benchmarks.saving`.

    python -m benchmarks.checkpoint
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import Result, alternated, show
from benchmarks.saving import BATCH_SIZE, BUFFER_BYTES, Learner, Saving, filled
from benchmarks.step import Server
from stream_server import StreamServer
from stream_server.storage.checksums import CHUNK_BYTES

NUM_PAIRS = 21
NUM_PAIRS_TORCH = 11
NUM_PROCESSES = 9


def results() -> Iterator[Result]:
    """checkpoint.{stall,capture}{,.torch}, checkpoint.write and checkpoint.memory."""
    with ExitStack() as stack:
        saving = _saving(stack, Learner)
        copy = Copy(saving.newest_bytes)
        yield from _of_training(saving, copy, "", NUM_PAIRS)
        plain = saving.folder.with_name("plain")
        yield alternated(
            "checkpoint.write",
            "MB/s",
            lambda: copy.num_bytes / 1e6 / saving.write_s(),
            lambda: copy.num_bytes / 1e6 / copy.write_s(plain),
        )
    with ExitStack() as stack:
        _use_one_thread(stack)
        saving = _saving(stack, Server)
        yield from _of_training(saving, Copy(saving.newest_bytes), ".torch", NUM_PAIRS_TORCH)
    yield _of_memory()


def _of_training(saving: Saving, copy: "Copy", suffix: str, num_pairs: int) -> Iterator[Result]:
    yield alternated(f"checkpoint.stall{suffix}", "ms", lambda: _lost_ms(saving), copy.one_round, num_pairs)
    captures = iter(saving.snapshots.capture_s[-num_pairs - 1 :])
    yield alternated(f"checkpoint.capture{suffix}", "ms", lambda: next(captures) * 1e3, copy.one_round, num_pairs)


def _saving(stack: ExitStack, server_class: type[StreamServer]) -> Saving:
    """A training that has drawn most of its buffer, and saved once."""
    study = stack.enter_context(filled())
    saving = Saving(stack, study, server_class)
    saving.train(study.buffer.capacity // BATCH_SIZE)
    saving.save()
    return saving


def _use_one_thread(stack: ExitStack) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)


def _of_memory() -> Result:
    runs = iter(map(_growth, range(NUM_PROCESSES + 1)))
    return alternated("checkpoint.memory", "bytes", lambda: next(runs), lambda: float(BUFFER_BYTES), NUM_PROCESSES)


class Copy:
    """So many bytes, copied in memory or written into a file of their own."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._source = np.ones(num_bytes, np.uint8)
        self._target = np.zeros(num_bytes, np.uint8)

    def one_round(self) -> float:
        start_s = time.perf_counter()
        np.copyto(self._target, self._source)
        return (time.perf_counter() - start_s) * 1e3

    def write_s(self, path: Path) -> float:
        """Seconds until it is on disk."""
        data = memoryview(self._source)
        start_s = time.perf_counter()
        with path.open("xb", buffering=0) as file:
            for start in range(0, self.num_bytes, CHUNK_BYTES):
                file.write(data[start : start + CHUNK_BYTES])
            os.fsync(file.fileno())
        duration_s = time.perf_counter() - start_s
        path.unlink()
        return duration_s


def _lost_ms(saving: Saving) -> float:
    start_s = time.perf_counter()
    num_batches = saving.save()
    saved_s = time.perf_counter()
    saving.train(num_batches)
    return ((saved_s - start_s) - (time.perf_counter() - saved_s)) * 1e3


def _growth(number: int) -> float:
    argv = [sys.executable, "-m", "benchmarks.saving"]
    return float(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)


if __name__ == "__main__":
    show(results())
