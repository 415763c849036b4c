"""The heat study's network: from five temperatures and a time step to the whole temperature field."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

HIDDEN = 256
LR_HALVINGS = (1000, 2000, 3000)


class HeatServer(TorchServer):
    """A direct surrogate: every time step of a simulation is predicted from its parameters alone."""

    def prepare_training_attributes(self):
        num_nodes = int(np.prod(self.config.study.fields["temperature"].shape))
        model = nn.Sequential(
            nn.Linear(len(self.parameter_names) + 1, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, num_nodes),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=self.config.user["lr"], weight_decay=1e-4, fused=True)
        scale = max(1, self.config.training.batch_size // 10)
        milestones = [batches // scale for batches in LR_HALVINGS]
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.5)

    def process_batch(self, batch, config):
        inputs = np.column_stack((batch.parameters, batch.time_steps))
        return inputs, batch.fields["temperature"].reshape(len(batch), -1)

    def training_step(self, batch, batch_idx):
        inputs, temperatures = batch
        return functional.mse_loss(self.model(inputs), temperatures)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)
