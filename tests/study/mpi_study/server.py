"""A server that looks at every value of every block."""

import numpy as np

from stream_server import StreamServer

PLANE, VOLUME = (5, 7), (3, 4, 5)


class BlocksServer(StreamServer):
    """Learns nothing but the mean signal."""

    def prepare_training_attributes(self):
        self.mean = np.zeros(8)

    def process_simulation_data(self, data, config):
        signal, time_step = data.fields["signal"], data.time_step
        parameters = dict(zip(self.parameter_names, data.parameters, strict=True))
        expected = parameters["offset"] + parameters["slope"] * np.arange(8) / 8 + time_step / 20
        np.testing.assert_array_equal(signal, expected)
        places = np.arange(35).reshape(PLANE), np.arange(60).reshape(VOLUME)
        np.testing.assert_array_equal(data.fields["plane"], places[0] + signal[0] + 1000.0 * time_step)
        np.testing.assert_array_equal(data.fields["volume"], places[1] - signal[0] - 1000.0 * time_step)
        return signal

    def training_step(self, batch, batch_idx):
        (mean,) = self.all_reduce([batch.mean(axis=0)])
        self.mean += 0.1 * (mean - self.mean)
        return float(np.mean((batch - self.mean) ** 2))

    def validation_step(self, batch, batch_idx):
        return float(np.mean((batch - self.mean) ** 2))

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]
