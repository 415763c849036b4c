"""The droplet's network: a sum over its atoms, however many there are (DeepSets)."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer, pack

HIDDEN = 32
NEIGHBOURS_SCALE = 12  # of an atom inside a dense fluid
ENERGY_SCALE = 7  # of such an atom: it shares a bond of the depth 1 with each neighbour


class EnergyOfAtoms(nn.Module):
    """The mean energy of the atoms of each sample, each of which has features of its own."""

    def __init__(self):
        super().__init__()
        self.of_atom = nn.Sequential(nn.Linear(2, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU())
        self.of_mean = nn.Linear(HIDDEN, 1)

    def forward(self, atoms, sample_of, counts):
        sums = atoms.new_zeros(len(counts), HIDDEN).index_add(0, sample_of, self.of_atom(atoms))
        return self.of_mean(sums / counts)


class DropletServer(TorchServer):
    def prepare_training_attributes(self):
        model = EnergyOfAtoms()
        return model, torch.optim.Adam(model.parameters(), lr=3e-3)

    def process_batch(self, batch, config):
        neighbours, offsets = pack(batch.fields["neighbours"])
        speed, _ = pack(np.linalg.norm(v, axis=1) for v in batch.fields["v"])
        counts = np.diff(offsets)
        sample_of = np.repeat(np.arange(len(batch)), counts)
        atoms = np.stack([neighbours / NEIGHBOURS_SCALE, speed], axis=1)
        energy = batch.fields["energy"] / (ENERGY_SCALE * counts[:, None])
        return (atoms, sample_of, counts[:, None].astype(float)), energy

    def predict(self, batch):
        atoms, _ = batch
        return self.model(*atoms)

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.predict(batch), batch[1])

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)
