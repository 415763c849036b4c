"""A .npy file for each sample, and torch's DataLoader with two workers once all are there."""

import numpy as np

from benchmarks.peers.work import ready, wait_for_producers


def produce(place, producer, work):
    for number in range(work.num_samples):
        np.save(place / f"{producer}-{number}.npy", work.sample(producer, number))


class Files:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return np.load(self.paths[index])


def batches(place, work):
    from torch.utils.data import DataLoader

    ready(place)
    wait_for_producers(place, work)
    loader = DataLoader(Files(sorted(place.glob("*.npy"))), work.batch_size, shuffle=True, num_workers=2)
    for _ in range(work.draws):
        yield from loader
