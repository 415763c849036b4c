"""A server whose weights tell whether training went on exactly where it was saved."""

import random
import time

import numpy as np
from server import LinearServer


class NoisyServer(LinearServer):
    """Adds noise from the random generators of all ranks; slow until there is a checkpoint of this start."""

    step_s = 0.05

    def prepare_training_attributes(self):
        super().prepare_training_attributes()
        random.seed(self.rank)
        np.random.seed(self.rank)

    def training_step(self, batch, batch_idx):
        time.sleep(self.step_s)
        loss = super().training_step(batch, batch_idx)
        (noise,) = self.all_reduce([np.random.normal(size=self.weights.shape) + random.random()])
        self.weights += 1e-3 * noise
        return loss

    def on_checkpoint(self, path):
        self.step_s = 0.005
