"""The smallest network for the signal, with a layer that draws random numbers."""

import numpy as np
import torch
from server import NUM_STEPS
from torch import nn
from torch.nn import functional

from stream_server import TorchServer


class TinyServer(TorchServer):
    """From the parameters and the time to the signal."""

    def prepare_training_attributes(self):
        inputs = len(self.parameter_names) + 1
        model = nn.Sequential(nn.Linear(inputs, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 8))
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def process_simulation_data(self, data, config):
        return np.append(data.parameters, data.time_step / NUM_STEPS), data.fields["signal"]

    def training_step(self, batch, batch_idx):
        inputs, signals = batch
        return functional.mse_loss(self.model(inputs), signals)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)
