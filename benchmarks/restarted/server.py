"""A mean that is learned by gradient descent."""

import numpy as np

from benchmarks.restarted.announcer import Announcer
from stream_server import StreamServer


class WaveServer(StreamServer):
    """As little as a learner can be."""

    def prepare_training_attributes(self):
        self.mean = np.zeros(1000)

    def process_batch(self, batch, config):
        return batch.fields["wave"]

    def training_step(self, batch, batch_idx):
        (gradient,) = self.all_reduce([self.mean - batch.mean(0)])
        self.mean -= 0.1 * gradient
        return float(gradient @ gradient)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]

    def configure_callbacks(self):
        return [Announcer()]
