"""A direct surrogate of the heat equation, whose training step takes a fixed time."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

HIDDEN = 128
CENTRE = 300.0
SCALE = 100.0
NUM_STEPS = 50


class PacedHeatServer(TorchServer):
    """The network of the heat study, smaller. The loss is the mean squared error in units of (100 K)²."""

    def prepare_training_attributes(self):
        model = nn.Sequential(
            nn.Linear(6, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 256)
        )
        return model, torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)

    def process_batch(self, batch, config):
        inputs = np.column_stack(((batch.parameters - CENTRE) / SCALE, batch.time_steps / NUM_STEPS))
        return inputs, (batch.fields["temperature"].reshape(len(batch), -1) - CENTRE) / SCALE

    def training_step(self, batch, batch_idx):
        ends_s = time.monotonic() + self.config.user["step_s"]
        inputs, temperatures = batch
        loss = functional.mse_loss(self.model(inputs), temperatures)
        # As if the model were larger and on a device of its own: no core is held.
        time.sleep(max(0.0, ends_s - time.monotonic()))
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, temperatures = batch
        return functional.mse_loss(self.model(inputs), temperatures)
