"""The linear model on windows, with rollouts that it defines itself."""

import numpy as np
from server import STEP_SIZE

from stream_server import StreamServer


class RolloutServer(StreamServer):
    """From all steps but the last to the last; the end of the training leaves the weights in `weights.npy`."""

    def prepare_training_attributes(self):
        self.weights = np.zeros((8 * (self.config.window.length - 1) + 1, 8))

    def process_batch(self, batch, config):
        signal = batch.fields["signal"]
        inputs = signal[:, :-1].reshape(len(batch), -1)
        return {"inputs": np.insert(inputs, 0, 1, axis=1), "signals": signal[:, -1]}

    def training_step(self, batch, batch_idx):
        inputs, signals = batch["inputs"], batch["signals"]
        errors = inputs @ self.weights - signals
        (gradient,) = self.all_reduce([inputs.T @ errors / len(inputs)])
        self.weights -= STEP_SIZE / self.weights.shape[0] * gradient
        return float(np.mean(errors**2))

    def validation_step(self, batch, batch_idx):
        return float(np.mean((batch["inputs"] @ self.weights - batch["signals"]) ** 2))

    def rollout_step(self, window, batch):
        assert (window.simulation_ids < self.config.validation.simulations).all()
        return {"signal": batch["inputs"] @ self.weights}

    def on_train_end(self):
        if self.rank == 0:
            np.save(self.output_dir / "weights.npy", self.weights)

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

    def replicated_state(self):
        return self.state_dict()
