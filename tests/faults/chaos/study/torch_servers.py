"""Torch models whose parameters do not get gradients at every step on every rank, or of which each rank has a part."""

import torch
from network import loss_of, make_network, scaled
from server import Audited
from torch import nn
from torch.nn import functional

from stream_server import TorchServer


class ExpertsServer(Audited, TorchServer):
    """A mixture of eight experts, of which a batch of four uses four at most."""

    def prepare_training_attributes(self):
        self.open_audit()
        model = nn.ModuleDict(
            {"gate": nn.Linear(256, 8), "experts": nn.ModuleList(nn.Linear(256, 4) for _ in range(8))}
        )
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def training_step(self, batch, batch_idx):
        waves = scaled(self.checked(batch))
        weights, chosen = self.model["gate"](waves).softmax(1).max(1)
        # Which expert a row goes to changes all the time, whatever the gate has learned.
        chosen = (chosen + batch_idx) % 8
        outputs = [self.model["experts"][expert](row) for expert, row in zip(chosen.tolist(), waves, strict=True)]
        return functional.mse_loss(torch.stack(outputs) * weights[:, None], waves[:, :4])


class AdversariesServer(Audited, TorchServer):
    """A generator and a discriminator with an optimizer each."""

    automatic_optimization = False

    def prepare_training_attributes(self):
        self.open_audit()
        model = nn.ModuleDict({"g": nn.Linear(4, 256), "d": nn.Linear(256, 1)})
        return model, [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (model["d"], model["g"])]

    def training_step(self, batch, batch_idx):
        waves = scaled(self.checked(batch))
        for_d, for_g = self.optimizer
        fakes = self.model["g"](waves[:, :4])
        loss = self.judged(waves, real=True) + self.judged(fakes.detach(), real=False)
        for_d.zero_grad()
        self.manual_backward(loss)
        for_d.step()
        for_g.zero_grad()
        self.manual_backward(self.judged(fakes, real=True))
        for_g.step()
        return loss

    def judged(self, fields, *, real):
        scores = self.model["d"](fields)
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


class ShardsServer(Audited, TorchServer):
    """A network that the ranks share out."""

    def prepare_training_attributes(self):
        self.open_audit()
        return make_network()

    def training_step(self, batch, batch_idx):
        return loss_of(self.model, scaled(self.checked(batch), torch.float64))
