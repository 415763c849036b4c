"""The smallest network, trained on batches of a loader: the stream without some samples, mixed with those of a file."""

import itertools

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch_server import TinyServer


class Mixed(IterableDataset):
    """Samples of the stream without every fifth step, and after each second one a sample of the file."""

    def __init__(self, stream, file):
        self.stream = stream
        self.file = file

    def __iter__(self):
        kept = (sample for sample in self.stream if sample["time_step"] % 5)
        for number, (ours, theirs) in enumerate(zip(kept, itertools.cycle(self.file), strict=False)):
            yield ours
            if number % 2:
                yield theirs


def collate(samples):
    inputs, signals = (torch.as_tensor(np.stack([sample[name] for sample in samples])) for name in ("inputs", "signal"))
    return inputs, signals


class LoadingServer(TinyServer):
    """A sample is a dict; the loader makes the pairs that the network is trained on."""

    def process_simulation_data(self, data, config):
        inputs, signal = super().process_simulation_data(data, config)
        return {"inputs": inputs, "signal": signal, "time_step": data.time_step}

    def process_batch(self, batch, config):
        """For the held-out samples, which no loader makes batches of."""
        return collate([self.process_simulation_data(sample, config) for sample in batch.samples()])

    def train_dataloader(self):
        import h5py

        with h5py.File(self.config.study_dir / self.config.user["earlier"]) as file:
            earlier = [
                {"inputs": inputs, "signal": signal, "time_step": 1}
                for inputs, signal in zip(file["inputs"][:], file["signal"][:], strict=True)
            ]
        return DataLoader(Mixed(self.train_dataset, earlier), batch_size=4, collate_fn=collate)
