"""The cavity study's network: from the speed of the lid, the viscosity and the time to the velocity in the plane."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

HIDDEN = 128


class CavityServer(TorchServer):
    """Learns the two components of the velocity that a flow in the plane has."""

    def prepare_training_attributes(self):
        rows, columns, _ = self.config.study.fields["U"].shape
        model = nn.Sequential(
            nn.Linear(3, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, rows * columns * 2)
        )
        return model, torch.optim.Adam(model.parameters(), lr=self.config.user["lr"], fused=True)

    def process_batch(self, batch, config):
        lid, viscosity = batch.parameters.T
        times = batch.time_steps / config.study.time_steps.num
        inputs = np.stack((lid, np.log10(viscosity) + 2.5, times), axis=1)
        return inputs, batch.fields["U"][..., :2].reshape(len(batch), -1)

    def training_step(self, batch, batch_idx):
        inputs, velocity = batch
        return functional.mse_loss(self.model(inputs), velocity)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def render(self, sample, prediction):
        velocity = sample.fields["U"][..., :2]
        predicted = prediction.output.reshape(velocity.shape)
        return {"speed": (np.linalg.norm(velocity, axis=-1), np.linalg.norm(predicted, axis=-1))}
