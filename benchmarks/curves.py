"""The time of the receiver for each sample, as a study becomes longer, and as samples become larger.

A client in another process sends over ipc as it is shipped, so that small steps share messages, while the main thread
draws from a FIFO; the time is the CPU time of the receiver thread. The first table is of one simulation that goes on
and on: each row is of the samples since the row before. In the second, what a copy of the sample takes stands beside
it.

    python -m benchmarks.curves
"""

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.reception import DEADLINE_S, Reception, reception
from benchmarks.sender import MAX_QUEUED_BYTES, Sender, sender
from stream_server.buffers import Fifo

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 16_000_000, 64_000_000)
RING_BYTES = 128 * 1024 * 1024
ROUND_BYTES = 256 * 1024 * 1024
MOST_IN_ROUND = 100_000
MOST_IN_BUFFER = 20_000
NUM_ROUNDS = 5
LENGTHS = (10**5, 10**6, 10**7)
SMALL = 100
DRAW = 4


def main() -> int:
    print(f"{'samples':>12} {'µs each':>12} {'peak, MB':>12}")
    for num, took_us in of_lengths():
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        print(f"{num:>12,} {took_us:>12.2f} {peak_mb:>12,.0f}", flush=True)
    print(f"\n{'bytes':>12} {'µs each':>12} {'copy, µs':>12} {'MB/s':>10}")
    for sample_bytes in SIZES:
        took_us, copy_us = of_size(sample_bytes), copied_us(sample_bytes)
        print(f"{sample_bytes:>12,} {took_us:>12.2f} {copy_us:>12.2f} {sample_bytes / took_us:>10,.0f}", flush=True)
    return 0


def of_size(sample_bytes: int) -> float:
    """µs for a sample, the median of some rounds."""
    with study_of(sample_bytes) as (study, send):
        num = max(8, min(MOST_IN_ROUND, ROUND_BYTES // sample_bytes))
        through(study, send, num)
        return statistics.median(through(study, send, num) for _ in range(NUM_ROUNDS))


def of_lengths() -> Iterator[tuple[int, float]]:
    """The number of samples so far, and µs for each of the newest."""
    with study_of(SMALL) as (study, send):
        done = 0
        for num in LENGTHS:
            yield num, through(study, send, num - done)
            done = num


@contextmanager
def study_of(sample_bytes: int) -> Iterator[tuple[Reception, Sender]]:
    """A receiver with a buffer of 128 MiB, or of sixteen samples, that stays half full, and one client.

    A client keeps its last steps until there are enough for a message, so that a buffer would never be empty.
    """
    capacity = max(16, min(MOST_IN_BUFFER, RING_BYTES // sample_bytes))
    credit = max(4, min(10_000, MAX_QUEUED_BYTES // sample_bytes))
    with (
        reception(Fifo(capacity=capacity), sample_bytes=sample_bytes, credit=credit) as study,
        sender("client", study.write_connection(), sample_bytes) as send,
    ):
        send(capacity // 2)
        study.wait_until(lambda: study.buffer.population >= capacity // 4)
        # Every page is in use before the first round, as in a buffer that has been full once.
        study.buffer.slots.arrays["field"].fill(1)
        yield study, send


def through(study: Reception, send: Sender, num: int) -> float:
    """µs of the receiver thread for each of `num` samples, until as many are drawn."""
    before_s, left = study.cpu_s, num
    send(num)
    while left:
        size = min(left, DRAW)
        draw = study.buffer.draw(size, DEADLINE_S)
        if draw is None:
            raise TimeoutError("nothing came for a minute")
        study.buffer.release(draw)
        left -= size
    return 1e6 * (study.cpu_s - before_s) / num


def copied_us(sample_bytes: int) -> float:
    """µs that a copy of a sample takes, into rows that take turns as those of the buffer."""
    num_rows = max(8, RING_BYTES // sample_bytes)
    rows, sample = np.ones((num_rows, sample_bytes), np.uint8), np.ones(sample_bytes, np.uint8)
    start_s, num = time.thread_time(), max(8, min(MOST_IN_ROUND, ROUND_BYTES // sample_bytes))
    for number in range(num):
        rows[number % num_rows] = sample
    return 1e6 * (time.thread_time() - start_s) / num


if __name__ == "__main__":
    sys.exit(main())
