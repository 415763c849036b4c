"""A .npy file for each sample, taken into batches as soon as it is there; a rename says that it is whole."""

import random
import time

import numpy as np

from benchmarks.peers.work import ready

LOOK_S = 0.01


def produce(place, producer, work):
    (place / f"of-{producer}").mkdir()
    for number in range(work.num_samples):
        path = place / f"{producer}-{number}.tmp"
        with path.open("wb") as file:
            np.save(file, work.sample(producer, number))
        path.rename(place / f"of-{producer}" / f"{number}.npy")


def batches(place, work):
    ready(place)
    paths, num = [], 0
    seen = [0] * work.num_producers
    while num < work.num_batches:
        before = len(paths)
        for producer in range(work.num_producers):
            while (path := place / f"of-{producer}" / f"{seen[producer]}.npy").exists():
                paths.append(path)
                seen[producer] += 1
        if num < work.num_allowed(len(paths)):
            num += 1
            yield np.stack([np.load(path) for path in random.sample(paths, work.batch_size)])
        elif len(paths) == before:
            time.sleep(LOOK_S)
