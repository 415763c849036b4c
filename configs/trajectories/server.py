"""The server class of the studies of trajectories: a model of one time step, trained on several in a row."""

import numpy as np
import torch

from stream_server import TorchServer


class TrajectoryServer(TorchServer):
    """From the first step of a window the model forecasts all others, each from its own forecast before.

    Errors that grow along the window count in the loss, as they do in a rollout. The model is `training.model` of
    study.json; it maps states of shape (B, fields, …) and parameters of shape (B, P) to the next states.
    """

    def process_batch(self, batch, config):
        states = np.stack([batch.fields[name] for name in config.study.fields], axis=2)  # (B, length, fields, …)
        return (states[:, 0], batch.parameters), states[:, 1:]

    def predict(self, batch):
        (state, parameters), targets = batch
        forecasts = []
        for _ in range(targets.shape[1]):
            state = self.model(state, parameters)
            forecasts.append(state)
        return torch.stack(forecasts, dim=1)

    def training_step(self, batch, batch_idx):
        errors = (self.predict(batch) - batch[1]) / self.model_to_evaluate().change_scale
        return errors.square().flatten(1).mean(dim=1)

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def rollout_step(self, window, batch):
        forecasts = self.predict(batch)
        return {name: forecasts[:, :, number] for number, name in enumerate(self.config.study.fields)}

    def render(self, sample, prediction):
        return {
            f"{name} at the last step": (sample.fields[name][-1], prediction.output[-1][number])
            for number, name in enumerate(self.config.study.fields)
        }
