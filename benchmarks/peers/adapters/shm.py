"""Shared memory: an array of each simulation for all of its samples, and the number of those that are there."""

import random
import time
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from benchmarks.peers.work import ready

LOOK_S = 0.001


def shared(place, producer, work, create=False):
    num_values = work.num_samples * work.num_values
    memory = SharedMemory(f"{place.name}-{producer}", create=create, size=8 + 4 * num_values)
    samples = np.frombuffer(memory.buf, np.float32, num_values, 8)
    return memory, np.frombuffer(memory.buf, np.int64, 1), samples.reshape(work.num_samples, -1)


def produce(place, producer, work):
    _memory, num, samples = shared(place, producer, work)
    for number in range(work.num_samples):
        samples[number] = work.sample(producer, number)
        num[0] = number + 1


def batches(place, work):
    blocks = [shared(place, producer, work, create=True) for producer in range(work.num_producers)]
    ready(place)
    keys, seen, num = [], [0] * work.num_producers, 0
    while num < work.num_batches:
        for producer, (_, there, _) in enumerate(blocks):
            keys += [(producer, number) for number in range(seen[producer], int(there[0]))]
            seen[producer] = int(there[0])
        if num < work.num_allowed(len(keys)):
            num += 1
            yield np.stack([blocks[producer][2][number] for producer, number in random.sample(keys, work.batch_size)])
        else:
            time.sleep(LOOK_S)
    for memory, *_ in blocks:
        memory.unlink()
