"""Components that `training` of a study.json may name, and a server class that leaves the model to study.json."""

import os

import numpy as np
import torch
from server import NUM_STEPS
from torch import nn

from stream_server import Callback, TorchServer


class Network(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 8))


class FittingServer(TorchServer):
    """Each rank leaves its batches by their number, and the weights before and after, beside its results."""

    @staticmethod
    def setup_environment(config, rank, local_rank):
        assert not torch.cuda.is_initialized()
        os.environ["SET_UP"] = f"rank {rank} of the study, {local_rank} of its node, on {config.study.name}"

    def __init__(self, config):
        self.set_up = os.environ["SET_UP"]
        super().__init__(config)

    def process_simulation_data(self, data, config):
        return np.append(data.parameters, data.time_step / NUM_STEPS), data.fields["signal"]

    def on_train_start(self):
        self.batches = {}
        (self.output_dir / f"environment-{self.rank}.txt").write_text(self.set_up)
        self.save("before")

    def training_step(self, batch, batch_idx):
        inputs, signals = batch
        self.batches[f"{batch_idx:06}-inputs"] = inputs.numpy()
        self.batches[f"{batch_idx:06}-signals"] = signals.numpy()
        return nn.functional.mse_loss(self.model(inputs), signals)

    def validation_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def on_train_end(self):
        np.savez(self.output_dir / f"batches-{self.rank}.npz", **self.batches)
        self.save("after")

    def save(self, name):
        if self.rank == 0:
            torch.save(self.model.state_dict(), self.output_dir / f"{name}.pt")


class Diary(Callback):
    """Writes the learning rates of a rank, and counts its steps."""

    def __init__(self, name):
        self.name = name
        self.num_steps = 0
        self.rates = []

    def on_step_end(self, server):
        self.num_steps += 1
        self.rates.append(server.optimizer.param_groups[0]["lr"])

    def on_train_end(self, server):
        values = [self.num_steps, server.expected_lr_steps, *self.rates]
        np.savetxt(server.output_dir / f"{self.name}-{server.rank}.txt", values)
