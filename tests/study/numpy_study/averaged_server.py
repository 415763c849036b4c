"""The smallest network, of which a moving average of the weights is validated and exported."""

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_server import TinyServer


class AveragedServer(TinyServer):
    """Averages after each step, on every rank."""

    def prepare_training_attributes(self):
        model, optimizer = super().prepare_training_attributes()
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        return model, optimizer

    def on_step_end(self):
        self.ema.update_parameters(self.model)

    def model_to_evaluate(self):
        return self.ema

    def validation_step(self, batch, batch_idx):
        assert self.model is self.ema.module
        return super().validation_step(batch, batch_idx)
