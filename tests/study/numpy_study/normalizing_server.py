"""The linear model, which makes sure that what it is given is normalised as all ranks have it."""

import numpy as np
from noisy_server import NoisyServer
from server import LinearServer


class NormalizingServer(LinearServer):
    """A sample is its inputs and signal, the signal at order one, and whether there were statistics by then."""

    def process_simulation_data(self, data, config):
        inputs, signal = super().process_simulation_data(data, config)
        return inputs, signal, self.normalization.normalize("signal", signal), self.normalization.is_ready

    def training_step(self, batch, batch_idx):
        inputs, signals, normalized, is_ready = batch
        assert np.all(is_ready), "a batch was formed before there were statistics"
        np.testing.assert_allclose(normalized, self.normalization.normalize("signal", signals), rtol=1e-3, atol=1e-4)
        (mean,) = self.all_reduce([self.normalization.mean["signal"]])
        np.testing.assert_allclose(mean, self.normalization.mean["signal"], rtol=1e-14)
        return super().training_step((inputs, signals), batch_idx)

    def validation_step(self, batch, batch_idx):
        return super().validation_step(batch[:2], batch_idx)


class NoisyNormalizingServer(NormalizingServer, NoisyServer):
    """The same, whose weights tell whether training went on exactly where it was saved."""
