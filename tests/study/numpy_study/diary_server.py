"""A small network that keeps the batches it was trained on."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

NUM_STEPS = 20


def make_model(num_inputs):
    model = nn.Sequential(nn.Linear(num_inputs, 16), nn.Tanh(), nn.Linear(16, 8)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class DiaryServer(TorchServer):
    """Each rank leaves its batches by their number, and the weights before and after, beside its results."""

    def prepare_training_attributes(self):
        model, optimizer = make_model(len(self.parameter_names) + 1)
        self.batches = {}
        self.save("before", model)
        return model, optimizer

    def process_simulation_data(self, data, config):
        return np.append(data.parameters, data.time_step / NUM_STEPS), data.fields["signal"]

    def training_step(self, batch, batch_idx):
        inputs, signals = batch
        self.batches[f"{batch_idx:06}-inputs"] = inputs.numpy()
        self.batches[f"{batch_idx:06}-signals"] = signals.numpy()
        return functional.mse_loss(self.model(inputs), signals)

    def validation_step(self, batch, batch_idx):
        return functional.mse_loss(self.model(batch[0]), batch[1])

    def on_train_end(self):
        np.savez(self.output_dir / f"batches-{self.rank}.npz", **self.batches)
        self.save("after", self.model)

    def save(self, name, model):
        if self.rank == 0:
            torch.save(model.state_dict(), self.output_dir / f"{name}.pt")
