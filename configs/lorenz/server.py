"""The Lorenz study's network: from a state and the three constants to the change over one time step."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

HIDDEN = 64
INPUT_CENTRE = np.array([0, 0, 25, 10, 28, 2.65])  # x, y, z, σ, ρ, β
INPUT_SCALE = np.array([8, 8, 7, 1.2, 2.3, 0.4])
CHANGE_SCALE = np.array([0.3, 0.5, 0.6])


class LorenzServer(TorchServer):
    """A one-step model. It learns the change of the state, which is far smaller than the state itself."""

    def prepare_training_attributes(self):
        model = nn.Sequential(
            nn.Linear(len(INPUT_CENTRE), HIDDEN),
            nn.SiLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.SiLU(),
            nn.Linear(HIDDEN, len(CHANGE_SCALE)),
        )
        return model, torch.optim.Adam(model.parameters(), lr=self.config.user["lr"], fused=True)

    def process_batch(self, batch, config):
        state, next_state = batch.fields["state"], batch.fields["next_state"]
        inputs = np.concatenate((state, batch.parameters), axis=1)
        return (inputs - INPUT_CENTRE) / INPUT_SCALE, (next_state - state) / CHANGE_SCALE

    def training_step(self, batch, batch_idx):
        inputs, changes = batch
        return functional.mse_loss(self.model(inputs), changes)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def render(self, sample, prediction):
        state, next_state = sample.fields["state"], sample.fields["next_state"]
        return {"state after one step": (next_state, state + prediction.output * CHANGE_SCALE)}
