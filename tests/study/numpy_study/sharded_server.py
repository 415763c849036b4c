"""Networks that the ranks are to share out, and one that they cannot."""

from averaged_server import AveragedServer
from torch_server import TinyServer


class Averaged(AveragedServer):
    """Logs a mean over all ranks and skips a batch now and then, at different batches on different ranks."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("mean", self.all_reduce(loss))
        return self.skip_batch() if batch_idx % 5 == 2 + self.rank else loss

    def validation_step(self, batch, batch_idx):
        assert self.model is self.ema.module
        return TinyServer.training_step(self, batch, batch_idx)


class Manual(TinyServer):
    """Steps its optimizer itself."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizer.step()
        self.optimizer.zero_grad()
