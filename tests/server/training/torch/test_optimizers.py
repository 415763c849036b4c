"""Training goes on from a checkpoint as a plain loop of torch does that was never interrupted, by any optimizer."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of

NUM_STEPS = 6
NUM_SAMPLES = 4

Make = Callable[[Any], Any]


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023); it names the type of its state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "dtype": torch.float32})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                zeros = torch.zeros_like(parameter, dtype=group["dtype"])
                momentum = self.state[parameter].setdefault("momentum", zeros)
                gradient = parameter.grad.to(group["dtype"])
                parameter -= group["lr"] * torch.sign(momentum.lerp(gradient, 1 - first))
                momentum.lerp_(gradient, 1 - second)


class ScheduleFree(torch.optim.Optimizer):
    """SGD without a schedule (Defazio et al. 2024), which counts in its groups of parameters, and not in its state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": 0.9, "k": 0, "weight_sum": 0.0, "train_mode": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["k"] ** 2
            part = group["k"] ** 2 / group["weight_sum"]
            for averaged in group["params"]:
                stepped = self.state[averaged].setdefault("z", averaged.clone())
                averaged.lerp_(stepped, part)
                averaged -= group["lr"] * (1 - group["beta"] * (1 - part)) * averaged.grad
                stepped -= group["lr"] * averaged.grad


class Quantized(torch.optim.Optimizer):
    """Momentum in 8 bits with a scale for each block, and a map of quantiles that all parameters share."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.map = torch.linspace(-1, 1, 256)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"qmap": self.map, "absmax": torch.zeros(()), "step": 0}
                    state["momentum"] = torch.full_like(parameter, 127, dtype=torch.uint8)
                momentum = 0.9 * state["qmap"][state["momentum"].long()] * state["absmax"] + parameter.grad
                state["absmax"] = momentum.abs().max()
                state["momentum"] = ((momentum / state["absmax"] + 1) * 127.5).round().to(torch.uint8)
                state["step"] += 1
                parameter -= group["lr"] * momentum / state["step"]


def with_lr(kind: Any, **options: Any) -> Make:
    return lambda model: kind(model.parameters(), lr=0.01, **options)


def muon(model: Any) -> Any:
    """For matrices only."""
    return torch.optim.Muon([it for it in model.parameters() if it.ndim == 2], lr=0.01)


def sparse_adam(model: Any) -> Any:
    return torch.optim.SparseAdam(model.table.parameters(), lr=0.01)


OPTIMIZERS: dict[str, Make] = {
    **{name: with_lr(it) for name, it in vars(torch.optim).items() if isinstance(it, type) and name != "Optimizer"},
    "LBFGS": with_lr(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": muon,
    "SparseAdam": sparse_adam,
    "SGD with momentum": with_lr(torch.optim.SGD, momentum=0.9, nesterov=True),
    "AMSGrad": with_lr(torch.optim.AdamW, amsgrad=True),
    "RMSprop, centered": with_lr(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Lion": with_lr(Lion),
    "ScheduleFree": with_lr(ScheduleFree),
    "Quantized": with_lr(Quantized),
}


class Net(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x + self.table((x[:, 0].abs() * 2).long().clamp(max=4)))


def loss_of(model: Any, x: Tensor) -> Any:
    return (model(x) - x[:, :2].sin()).square().mean()


class Server(TorchServer):
    name: str

    def prepare_training_attributes(self) -> Any:
        return made(self.name)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return loss_of(self.model, batch)


class LineSearch(Server):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return step_with_closure(self.model, self.optimizer, self.manual_backward, batch)


def step_with_closure(model: Any, optimizer: Any, backward: Callable[[Any], None], x: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, x)
        backward(loss)
        return loss

    optimizer.step(closure)


def made(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Net(sparse=name == "SparseAdam")
    return model, OPTIMIZERS[name](model)


def samples(index: int) -> Tensor:
    return torch.randn(NUM_SAMPLES, 3, generator=torch.Generator().manual_seed(index))


def weights(model: Any) -> list[list[float]]:
    return [it.detach().flatten().tolist() for it in model.parameters()]


def trained_plainly(name: str) -> list[list[float]]:
    model, optimizer = made(name)
    for index in range(NUM_STEPS):
        if name == "LBFGS":
            step_with_closure(model, optimizer, Tensor.backward, samples(index))
        else:
            optimizer.zero_grad()
            loss_of(model, samples(index)).backward()
            optimizer.step()
    return weights(model)


def trained(name: str, restarts: Sequence[int], **keys: Any) -> list[list[float]]:
    kind = LineSearch if name == "LBFGS" else Server
    saved = b""
    for first, stop in pairwise((0, *restarts, NUM_STEPS)):
        server = kind(settings(**keys))
        server.name = name
        with TorchStep(server, SoloRanks(), server.config) as step:
            if saved:
                step.load_state_dict(from_bytes(saved))
            for index in range(first, stop):
                x = samples(index)
                counts = StepCounts(num_first=NUM_SAMPLES)
                batch = UnionBatch(own=batch_of(x, NUM_SAMPLES), sizes=(NUM_SAMPLES,), counts=counts)
                step.run(batch, step.to_device(x), index)
            step.synchronize()
            saved = to_bytes(step.state_dict())
    return weights(server.model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_checkpoint_as_in_a_plain_loop_that_was_not_interrupted(name: str) -> None:
    expected = trained_plainly(name)
    assert expected != weights(made(name)[0])
    assert trained(name, (1, 4), precision="32-true") == expected


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_so_it_does_where_the_state_is_of_another_type_than_the_weights(name: str, precision: str) -> None:
    assert trained(name, (1, 4), precision=precision) == trained(name, (), precision=precision)
