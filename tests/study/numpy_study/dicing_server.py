"""The small network with a schedule, of which each rank writes down what its random generators gave at each batch."""

import random

import numpy as np
import torch
from scheduled_server import OneCycleServer


class DicingServer(OneCycleServer):
    """One line of `dice-RANK.txt` for each batch, of all starts."""

    def prepare_training_attributes(self):
        random.seed(self.rank)
        np.random.seed(self.rank)
        return super().prepare_training_attributes()

    def training_step(self, batch, batch_idx):
        with (self.output_dir / f"dice-{self.rank}.txt").open("a") as file:
            print(torch.rand(()).item(), np.random.random(), random.random(), file=file)
        return super().training_step(batch, batch_idx)
