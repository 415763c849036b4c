"""The heat study's network in Keras, with torch as its backend: a model of Keras is a module of torch then."""

import os

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported

import keras
import numpy as np
import torch

from stream_server import TorchServer

HIDDEN = 256
CENTRE, SCALE = 300.0, 115.0  # of temperatures drawn from 100 to 500 K


class HeatServer(TorchServer):
    """A direct surrogate, as ../heat has it: every time step of a simulation is predicted from its parameters alone."""

    def prepare_training_attributes(self):
        num_nodes = int(np.prod(self.config.study.fields["temperature"].shape))
        # The weights are saved by the names of the layers; those that Keras gives count on within a process.
        inputs = keras.Input([len(self.parameter_names) + 1])
        hidden = keras.layers.Dense(HIDDEN, activation="relu", name="first")(inputs)
        hidden = keras.layers.Dense(HIDDEN, activation="relu", name="second")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(num_nodes, name="last")(hidden), name="network")
        return model, torch.optim.Adam(model.parameters(), lr=self.config.user["lr"])

    def process_batch(self, batch, config):
        times = batch.time_steps / config.study.time_steps.num
        inputs = np.column_stack(((batch.parameters - CENTRE) / SCALE, 2 * times - 1))
        return inputs, (batch.fields["temperature"].reshape(len(batch), -1) - CENTRE) / SCALE

    def training_step(self, batch, batch_idx):
        inputs, temperatures = batch
        # Keras asks for `training`, and not for the mode of the module.
        return keras.losses.mean_squared_error(temperatures, self.model(inputs, training=True)).mean()

    def validation_step(self, batch, batch_idx):
        inputs, temperatures = batch
        return keras.losses.mean_squared_error(temperatures, self.model(inputs, training=False)).mean()

    def render(self, sample, prediction):
        truth = sample.fields["temperature"]
        return {"temperature": (truth, CENTRE + SCALE * prediction.output.reshape(truth.shape))}
