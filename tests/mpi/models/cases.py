"""Models as users write them, one of each kind the field trains; none knows that it is trained on several ranks.

A row of data is `NUM_COLUMNS` numbers, and each model makes of it what it needs. Nothing here imports stream_server, so
that a plain loop can train the same models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

NUM_COLUMNS = 18

Optimizers = list[torch.optim.Optimizer]


def sgd(model: nn.Module) -> Optimizers:
    return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]


def nothing(model: nn.Module, step: int) -> None:
    """Change nothing at the end of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """How a model is made, what its loss is, and what the user does after each step.

    `loss` is a mean over the rows, None for a batch that is to be skipped. `losses` are instead the losses of an
    alternating training, one for each optimizer in turn. `averaged`: an exponential moving average of the weights is
    kept beside the model. `scheduled`: every second update halves the learning rate. `apart`: the user's `self.model`
    is the first child of the module alone; the rest is in another attribute of the server.
    """

    make: Callable[[], nn.Module]
    loss: Callable[[Any, Tensor], Tensor | None] | None = None
    losses: tuple[Callable[[Any, Tensor], Tensor], ...] = ()
    optimizers: Callable[[nn.Module], Optimizers] = sgd
    after_step: Callable[[nn.Module, int], None] = nothing
    averaged: bool = False
    scheduled: bool = False
    apart: bool = False


def fit(model: Any, rows: Tensor) -> Tensor:
    """The error of a model that maps 8 numbers to 8."""
    return functional.mse_loss(model(rows[:, :8]), rows[:, 8:16])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8))


class UNet(nn.Module):
    """One level down and up again, with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool1d(2), nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Tanh())
        self.up = nn.ConvTranspose1d(4, 3, 2, stride=2)
        self.out = nn.Conv1d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down(x[:, None])
        joined = torch.cat((skipped, self.up(self.bottom(skipped))), 1)
        return self.out(joined)[:, 0]


class Residual(nn.Module):
    """Two blocks of convolution and batch normalisation beside an identity, over an image of 2 × 4."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(2)
        )
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x.view(-1, 1, 2, 4))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden.flatten(1))


class Fourier(nn.Module):
    """A Fourier neural operator of one layer, whose weights are complex (Li et al., arXiv 2010.08895)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 2)
        self.modes = nn.Parameter(0.1 * torch.randn(2, 2, 3, dtype=torch.complex128))
        self.project = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.lift(x[..., None]).transpose(1, 2)
        spectrum = torch.fft.rfft(hidden)
        mixed = torch.zeros_like(spectrum)
        mixed[..., :3] = torch.einsum("bik,iok->bok", spectrum[..., :3], self.modes)
        hidden = functional.gelu(hidden + torch.fft.irfft(mixed, n=hidden.shape[-1]))
        return self.project(hidden.transpose(1, 2))[..., 0]


class Attention(nn.Module):
    """A transformer layer over four tokens of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x.view(-1, 4, 2)))).flatten(1)


class Messages(nn.Module):
    """A graph network: messages along the edges of a ring of eight nodes, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Linear(2, 5)
        self.node = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        num = len(x)
        nodes = torch.arange(8).repeat(num) + 8 * torch.arange(num).repeat_interleave(8)
        ends = (nodes + 1) % 8 + 8 * (nodes // 8)
        values = x.reshape(-1, 1)
        messages = torch.tanh(self.edge(torch.cat((values[nodes], values[ends]), 1)))
        received = messages.new_zeros(8 * num, 5).index_add(0, ends, messages)
        return self.node(torch.cat((values, received), 1)).view(num, 8)


class Experts(nn.Module):
    """Each row goes to one of five experts; in a small batch most have nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 5)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(1).max(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, None])
        return out


class Adversaries(nn.Module):
    """A generator and a discriminator, called by themselves as in any textbook."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.d = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))

    def judged(self, rows: Tensor, fields: Tensor, *, real: bool) -> Tensor:
        scores = self.d(torch.cat((rows[:, :4], fields), 1))
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))

    def generated(self, rows: Tensor) -> Tensor:
        fields: Tensor = self.g(torch.cat((rows[:, :4], rows[:, 16:18]), 1))
        return fields


def discriminator_loss(model: Adversaries, rows: Tensor) -> Tensor:
    fakes = model.generated(rows).detach()
    return model.judged(rows, rows[:, 8:12], real=True) + model.judged(rows, fakes, real=False)


def generator_loss(model: Adversaries, rows: Tensor) -> Tensor:
    return model.judged(rows, model.generated(rows), real=True)


def of_both(model: nn.Module) -> Optimizers:
    assert isinstance(model, Adversaries)
    return [torch.optim.SGD(model.d.parameters(), lr=0.1), torch.optim.Adam(model.g.parameters(), lr=0.01)]


class Variational(nn.Module):
    """A variational autoencoder, whose noise comes with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 4)
        self.decode = nn.Linear(2, 8)


def evidence(model: Variational, rows: Tensor) -> Tensor:
    mean, log_variance = model.encode(rows[:, :8]).chunk(2, 1)
    latent = mean + (log_variance / 2).exp() * rows[:, 16:18]
    divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
    return functional.mse_loss(model.decode(latent), rows[:, :8]) + 0.1 * divergence


class Recurrent(nn.Module):
    """A GRU over sequences of different lengths, of which the last state counts."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 4, batch_first=True)
        self.head = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 2 + (x[:, 0].abs() * 10).long() % 6
        packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.cell(packed)[1][-1])


class Gated(nn.Module):
    """A part that only batches of three rows or more use, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.extra = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (self.extra(x) if len(x) >= 3 else 0)


def fit_some(model: Any, rows: Tensor) -> Tensor | None:
    """Skips a batch before it has called the model, or after it."""
    first = float(rows[0, 17])
    if first < -0.5:
        return None
    loss = fit(model, rows)
    return None if first > 0.5 else loss


def fit_where_finite(model: Any, rows: Tensor) -> Tensor:
    """Overflows for some batches."""
    loss = fit(model, rows)
    return loss / 0 if float(rows[0, 17]) > 0.5 else loss


def fit_relative(model: Any, rows: Tensor) -> Tensor:
    """The loss and its gradient are not finite where a row is zero."""
    return (functional.mse_loss(model(rows[:, :8]), rows[:, 8:16], reduction="none").mean(1) / rows[:, 16].abs()).mean()


class LowRank(nn.Module):
    """A frozen layer with an adapter of low rank beside it (Hu et al., arXiv 2106.09685)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Module:
    """A frozen backbone of which only the adapters learn."""
    return nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Tanh(), LowRank(), nn.Tanh(), LowRank())


def frozen_at_first() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8))
    return model.requires_grad_(False).append(nn.Linear(8, 8))


def unfreeze(model: Any, step: int) -> None:
    """The backbone learns from the third step on, and the head no longer after the fifth."""
    if step == 2:
        model.requires_grad_(True)
    if step == 5:
        model[-1].requires_grad_(False)


class SineLinear(nn.LazyLinear):
    """A lazy layer whose first weights are the same wherever it meets its first batch."""

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_features:
            with torch.no_grad():
                self.weight.copy_(torch.arange(self.weight.numel()).view_as(self.weight).double().sin() / 3)
                self.bias.zero_()


def lazy() -> nn.Module:
    return nn.Sequential(SineLinear(6), nn.Tanh(), SineLinear(8))


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and whose two biases are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.second(torch.tanh(self.first(x)))), self.first.weight.T)


class Recomputed(nn.Module):
    """Forgets what its layers computed, and computes it again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = torch.tanh(checkpoint(layer, x, use_reentrant=index == 1))
        return x


class Meshes(nn.Module):
    """A graph network on meshes of three to eight nodes, which lie packed one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node, self.out = nn.Linear(2, 5), nn.Linear(6, 5), nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        sizes = 3 + (5 * x[:, 0].abs()).long().clamp(max=5)
        starts = sizes.cumsum(0) - sizes
        mesh = torch.repeat_interleave(torch.arange(len(x)), sizes)
        nodes = torch.arange(len(mesh))
        values = x[mesh, nodes - starts[mesh]][:, None]
        ends = torch.where(nodes + 1 < (starts + sizes)[mesh], nodes + 1, starts[mesh])
        messages = torch.tanh(self.edge(torch.cat((values, values[ends]), 1)))
        received = messages.new_zeros(len(mesh), 5).index_add(0, ends, messages)
        states = torch.tanh(self.node(torch.cat((values, received), 1)))
        return self.out(states.new_zeros(len(x), 5).index_add(0, mesh, states) / sizes[:, None])


class Halves(nn.Module):
    """An encoder and a decoder that are called by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 5), nn.Linear(5, 8)


def by_halves(model: Halves, rows: Tensor) -> Tensor:
    return functional.mse_loss(model.dec(torch.relu(model.enc(rows[:, :8]))), rows[:, 8:16])


def adam(model: nn.Module) -> Optimizers:
    return [torch.optim.Adam(model.parameters(), lr=0.01)]


CASES: dict[str, Case] = {
    "perceptron": Case(make=mlp, loss=fit, optimizers=adam),
    "submodules": Case(make=Halves, loss=by_halves),
    "u-net": Case(make=UNet, loss=fit),
    "residual network": Case(make=Residual, loss=fit),
    "Fourier operator": Case(make=Fourier, loss=fit),
    "transformer": Case(make=Attention, loss=fit),
    "graph network": Case(make=Messages, loss=fit),
    "graph network on meshes of several sizes": Case(make=Meshes, loss=fit),
    "mixture of experts": Case(make=Experts, loss=fit),
    "adversaries": Case(make=Adversaries, losses=(discriminator_loss, generator_loss), optimizers=of_both),
    "variational autoencoder": Case(make=Variational, loss=evidence),
    "recurrent network": Case(make=Recurrent, loss=fit),
    "part used now and then": Case(make=Gated, loss=fit),
    "frozen backbone with adapters": Case(make=adapted, loss=fit, optimizers=adam),
    "unfrozen backbone": Case(make=frozen_at_first, loss=fit, after_step=unfreeze),
    "lazy layers": Case(make=lazy, loss=fit),
    "tied weights": Case(make=Tied, loss=fit),
    "recomputed layers": Case(make=Recomputed, loss=fit),
    "averaged weights": Case(make=mlp, loss=fit, averaged=True),
    "scheduled rate": Case(make=mlp, loss=fit, scheduled=True),
    "skipped batches": Case(make=mlp, loss=fit_some),
    "losses that are not finite": Case(make=mlp, loss=fit_where_finite),
    "relative errors": Case(make=mlp, loss=fit_relative),
    "modules apart": Case(make=Residual, loss=fit, apart=True),
}


def made(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model with its first weights, which are the same at each call."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(11)
    try:
        return case.make()
    finally:
        torch.set_default_dtype(before)


def rows_of(num: int) -> Tensor:
    """The first `num` rows of the data, the same for whoever asks."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(num, NUM_COLUMNS, generator=generator, dtype=torch.float64)


def halved(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """The schedule of a case that has one."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def average(model: nn.Module) -> AveragedModel:
    """An exponential moving average of the model's weights."""
    return AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
