"""A small Fourier neural operator that takes one field to the next, normalised."""

import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer

WIDTH, MODES = 8, 6


class Spectral(nn.Module):
    """A product with weights of its own for each of the lowest Fourier modes."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(WIDTH, WIDTH, MODES, 2) / WIDTH)

    def forward(self, hidden):
        modes = torch.fft.rfft(hidden)
        mixed = torch.einsum("bim,iom->bom", modes[..., :MODES], torch.view_as_complex(self.weights))
        return torch.fft.irfft(functional.pad(mixed, (0, modes.shape[-1] - MODES)), n=hidden.shape[-1])


class Operator(nn.Module):
    """Lifts the field to channels, mixes them twice, and gives the change of the field."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv1d(1, WIDTH, 1)
        self.spectral = nn.ModuleList([Spectral(), Spectral()])
        self.local = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)])
        self.drop = nn.Dropout(0.1)
        self.project = nn.Conv1d(WIDTH, 1, 1)

    def forward(self, u):
        hidden = self.lift(u[:, None])
        for spectral, local in zip(self.spectral, self.local, strict=True):
            hidden = functional.gelu(spectral(hidden) + local(hidden))
        return u + self.project(self.drop(hidden))[:, 0]


class OperatorServer(TorchServer):
    """Windows of two steps: the first is the input, the second the target."""

    def prepare_training_attributes(self):
        model = Operator()
        return model, torch.optim.Adam(model.parameters(), lr=5e-3)

    def process_batch(self, batch, config):
        u = self.normalization.normalize("u", batch.fields["u"])
        return u[:, 0], u[:, 1]

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return functional.mse_loss(self.model(inputs), targets)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)
