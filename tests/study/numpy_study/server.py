"""A linear model trained by hand, to show and to test a study without torch."""

import os
import time

import numpy as np

from stream_server import StreamServer

NUM_STEPS = 20
STEP_SIZE = 0.2


class LinearServer(StreamServer):
    """Least squares by gradient descent; `user.trouble`, or TROUBLE, names a method that raises on rank `user.rank`."""

    def prepare_training_attributes(self):
        self.fail_if_asked("prepare_training_attributes")
        self.weights = np.zeros((len(self.parameter_names) + 2, 8))

    def process_simulation_data(self, data, config):
        self.fail_if_asked("process_simulation_data")
        return np.array([1, *data.parameters, data.time_step % NUM_STEPS / NUM_STEPS]), data.fields["signal"]

    def training_step(self, batch, batch_idx):
        if batch_idx > 1:
            self.fail_if_asked("training_step")
        if batch_idx == self.config.user.get("stop_at"):
            self.stop_study("good enough")
        inputs, signals = batch
        errors = inputs @ self.weights - signals
        (gradient,) = self.all_reduce([inputs.T @ errors / len(inputs)])
        self.weights -= STEP_SIZE * gradient
        return float(np.mean(errors**2)) * (np.nan if self.config.user.get("diverges") else 1.0)

    def validation_step(self, batch, batch_idx):
        inputs, signals = batch
        return float(np.mean((inputs @ self.weights - signals) ** 2))

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

    def replicated_state(self):
        return self.state_dict()

    def fail_if_asked(self, method):
        if os.environ.get("TROUBLE", self.config.user["trouble"]) == method and self.rank == self.config.user["rank"]:
            (self.output_dir / "raised").write_text(str(time.time()))
            raise ArithmeticError(f"trouble in {method} of rank {self.rank}")
