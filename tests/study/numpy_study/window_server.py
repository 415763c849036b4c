"""The linear model on windows: from all steps but the last to the last. Each rank notes the windows of its batches."""

import numpy as np
from ripple import signal_at
from server import STEP_SIZE

from stream_server import StreamServer


class WindowServer(StreamServer):
    """A line of `windows-RANK.txt` for each window of a batch, of all starts: its simulation and its time steps."""

    def prepare_training_attributes(self):
        self.weights = np.zeros((8 * (self.config.window.length - 1) + 1, 8))

    def process_simulation_data(self, data, config):
        signal, length = data.fields["signal"], config.window.length
        self.check(data, signal, length)
        return np.append(1, signal[:-1]), signal[-1], np.append(data.simulation_id, data.time_steps)

    def check(self, data, signal, length):
        assert data.time_steps.shape == (length,)
        assert data.time_step == data.time_steps[0]
        assert signal.shape == (length, 8)
        parameters = dict(zip(self.parameter_names, data.parameters, strict=True))
        for step, values in zip(data.time_steps, signal, strict=True):
            np.testing.assert_array_equal(values, signal_at(int(step), parameters))

    def training_step(self, batch, batch_idx):
        inputs, signals, windows = batch
        with (self.output_dir / f"windows-{self.rank}.txt").open("a") as file:
            np.savetxt(file, windows, fmt="%d")
        errors = inputs @ self.weights - signals
        (gradient,) = self.all_reduce([inputs.T @ errors / len(inputs)])
        self.weights -= STEP_SIZE / self.weights.shape[0] * gradient
        return float(np.mean(errors**2))

    def validation_step(self, batch, batch_idx):
        inputs, signals, windows = batch
        assert (windows[:, 0] < self.config.validation.simulations).all()
        return float(np.mean((inputs @ self.weights - signals) ** 2))

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

    def replicated_state(self):
        return self.state_dict()


class ConstantServer(WindowServer):
    """The same, of a simulation whose signal is its offset."""

    def check(self, data, signal, length):
        offset = data.parameters[self.parameter_names.index("offset")]
        np.testing.assert_array_equal(signal, np.full((length, 8), offset))


class ForecastingServer(WindowServer):
    """The same, rolled out: what is forecast is not what the simulation computes."""

    def check(self, data, signal, length):
        if data.simulation_id >= self.config.validation.simulations:
            super().check(data, signal, length)

    def rollout_step(self, window, batch):
        inputs, _, _ = batch
        return {"signal": inputs @ self.weights}
