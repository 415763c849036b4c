"""The training of this study: the model, what it learns from a time step, and the loss."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer


class Server(TorchServer):
    def prepare_training_attributes(self):
        """Make the model and its optimizer; a learning-rate scheduler may follow them."""
        num_inputs = len(self.parameter_names) + 1
        num_outputs = int(np.prod(self.config.study.fields["u"].shape))
        model = nn.Sequential(nn.Linear(num_inputs, 128), nn.ReLU(), nn.Linear(128, num_outputs))
        return model, torch.optim.Adam(model.parameters(), lr=self.config.user["lr"], fused=True)

    def process_simulation_data(self, data, config):
        """Make a training sample of one time step: here its parameters and its time, and the field to predict."""
        return np.append(data.parameters, data.time_step / config.study.time_steps.num), data.fields["u"].ravel()

    def training_step(self, batch, batch_idx):
        """The loss of a batch of samples. The rest is done: backward, the gradients of all ranks, the optimizer."""
        inputs, outputs = batch
        return functional.mse_loss(self.model(inputs), outputs)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)
