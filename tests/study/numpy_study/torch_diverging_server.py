"""The smallest network, of which rank 1 alone changes one weight after the first checkpoint."""

import torch
from diverging_server import note_the_first
from torch_server import TinyServer


class DivergingServer(TinyServer):
    is_saved = False

    def on_checkpoint(self, path):
        self.is_saved = True

    def on_step_end(self):
        if self.is_saved and self.rank == 1:
            note_the_first(self)
            *_, bias = self.model.parameters()
            with torch.no_grad():
                bias[5] += 0.5
