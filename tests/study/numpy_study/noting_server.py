"""A network without noise, and the samples of each batch that it has learned from."""

import json

import numpy as np
import torch
from server import NUM_STEPS
from torch import nn
from torch.nn import functional

from stream_server import TorchServer


class NotingServer(TorchServer):
    """Each rank keeps, for each of its batches, its number and its samples."""

    def prepare_training_attributes(self):
        self.noted = []
        model = nn.Linear(3, 8)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def process_simulation_data(self, data, config):
        inputs = np.append(data.parameters, data.time_step / NUM_STEPS)
        return inputs, data.fields["signal"], np.array([data.simulation_id, data.time_step])

    def training_step(self, batch, batch_idx):
        inputs, signals, samples = batch
        self.noted.append([self.progress.batches, samples.tolist()])
        return functional.mse_loss(self.model(inputs), signals)

    def validation_step(self, batch, batch_idx):
        inputs, signals, _ = batch
        return functional.mse_loss(self.model(inputs), signals)

    def rank_state_dict(self):
        return {"noted": self.noted}

    def load_rank_state_dict(self, states):
        for rank, state in states.items():
            if rank % self.num_ranks == self.rank:
                self.noted += state["noted"]

    def on_train_end(self):
        (self.output_dir / f"noted-{self.rank}.json").write_text(json.dumps(self.noted))
