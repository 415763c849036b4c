"""Shared memory: an array of each simulation for all of its samples, and the number of those that are there."""

import random
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.work import ready

FOLDER = Path("/dev/shm")  # noqa: S108 the names in it are our own
LOOK_S = 0.001


def shared(place, producer, work, mode="r+"):
    samples = np.memmap(
        FOLDER / f"{place.name}-{producer}", np.float32, mode, shape=(work.num_samples, work.num_values)
    )
    return np.memmap(FOLDER / f"{place.name}-{producer}-num", np.int64, mode, shape=1), samples


def produce(place, producer, work):
    num, samples = shared(place, producer, work)
    for number in range(work.num_samples):
        samples[number] = work.sample(producer, number)
        num[0] = number + 1


def batches(place, work):
    blocks = [shared(place, producer, work, "w+") for producer in range(work.num_producers)]
    ready(place)
    keys, seen, num = [], [0] * work.num_producers, 0
    while num < work.num_batches:
        for producer, (there, _) in enumerate(blocks):
            newest = int(there[0])
            keys += [(producer, number) for number in range(seen[producer], newest)]
            seen[producer] = newest
        if num < work.num_allowed(len(keys)):
            num += 1
            yield np.stack([blocks[producer][1][number] for producer, number in random.sample(keys, work.batch_size)])
        else:
            time.sleep(LOOK_S)
    for path in FOLDER.glob(f"{place.name}-*"):
        path.unlink()
