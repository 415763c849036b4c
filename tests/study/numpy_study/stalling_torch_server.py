"""The smallest network, of which one rank never comes to the sum of the gradients."""

from stalling_server import block
from torch_server import TinyServer


class StallingServer(TinyServer):
    """Blocks at its fourth batch on rank 1."""

    def training_step(self, batch, batch_idx):
        if batch_idx > 3 and self.rank == 1:
            block(deaf=True)
        return super().training_step(batch, batch_idx)
