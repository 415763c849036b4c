"""The smallest network, which logs what may be logged in a training step, and a writer that is told the end."""

import torch
from torch import nn
from torch.nn import functional
from torch_server import TinyServer
from torchmetrics import MeanSquaredError

import stream_server


class Telling(nn.Module):
    """A model that counts its inputs, without knowing the server."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        if self.training:
            stream_server.log("model/inputs", len(inputs), reduce="sum", keep=True)
        return self.model(inputs)


class LoggingServer(TinyServer):
    def prepare_training_attributes(self):
        model = Telling(super().prepare_training_attributes()[0])
        self.error = MeanSquaredError()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def training_step(self, batch, batch_idx):
        inputs, signals = batch
        self.log("signal/sum", signals.sum(), reduce="sum", keep=True)
        self.log("signal/max", signals.max(), reduce="max", keep=True)
        self.log("signal/min", signals.min(), reduce="min", keep=True)
        for signal in signals:
            self.log("signal/mean", signal.mean(), keep=True)
        outputs = self.model(inputs)
        self.error.update(outputs.detach(), signals)
        self.log("error", self.error)
        return functional.mse_loss(outputs, signals)

    def validation_step(self, batch, batch_idx):
        inputs, signals = batch
        return functional.mse_loss(self.model(inputs), signals)

    def on_gradients(self, model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        self.log("updates", 1 / self.num_ranks, reduce="sum", keep=True)
        (norm,) = self.gradient_norms().values()
        self.log("grad/used", norm, reduce="max", keep=True)


class Told:
    """Writes down how each start ended."""

    def __init__(self, run):
        self.path = run.folder / "ends"

    def write(self, record):
        pass

    def flush(self):
        pass

    def end(self, status, reason):
        with self.path.open("a") as file:
            file.write(f"{status}: {reason}\n")

    def close(self):
        pass
