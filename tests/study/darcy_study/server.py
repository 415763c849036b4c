"""Learns the pressure from the permeability, and writes down what it was given."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

NUM_CELLS, NUM_LOADS = 16, 5


def make_model():
    return nn.Sequential(nn.Linear(NUM_CELLS + NUM_LOADS, 24), nn.Tanh(), nn.Linear(24, NUM_CELLS + 1))


class DarcyServer(TorchServer):
    """Each sample is given with the coefficient of its simulation."""

    def prepare_training_attributes(self):
        torch.manual_seed(3)
        model = make_model()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def process_batch(self, batch, config):
        assert batch.fields["coefficient"].shape == (len(batch), NUM_CELLS)
        assert batch.present["coefficient"].all()
        inputs = np.concatenate([batch.fields["coefficient"], np.eye(NUM_LOADS)[batch.time_steps]], axis=1)
        keys = np.stack([batch.simulation_ids, batch.time_steps], axis=1)
        return inputs, batch.fields["pressure"], keys

    def training_step(self, batch, batch_idx):
        inputs, targets, keys = batch
        with open(self.output_dir / f"trained-{self.rank}.txt", "a") as file:
            np.savetxt(file, np.insert(keys.numpy(), 0, batch_idx, axis=1), fmt="%d")
        return functional.mse_loss(self.model(inputs), targets)

    def validation_step(self, batch, batch_idx):
        inputs, targets, _ = batch
        return functional.mse_loss(self.model(inputs), targets)

    def on_train_end(self):
        if self.rank == 0:
            weights = {name: it.numpy() for name, it in self.model.state_dict().items()}
            statistics = {"mean": self.normalization.mean["coefficient"], "std": self.normalization.std["coefficient"]}
            np.savez(self.output_dir / "weights.npz", **weights, **statistics)
