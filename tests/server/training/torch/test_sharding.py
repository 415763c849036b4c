"""How a model falls into units, what cannot be sharded, and one rank that trains with shards as without."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stream_server.config.training_sections import Sharding
from stream_server.errors import ConfigError, StreamServerError
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.sharding import check_blocks, check_sharding, is_shard, units
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from tests.support.settings import settings
from tests.support.streams import batch_of

FULL = {"kind": "full"}


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.outer(self.inner(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def names_of_units(model: nn.Module, **words: Any) -> list[str]:
    names = {id(module): name for name, module in model.named_modules()}
    return sorted(names[id(module)] for module in units(model, Sharding(kind="full", **words)))


def test_by_default_each_child_is_a_unit_also_those_in_lists() -> None:
    assert names_of_units(Network()) == ["blocks.0", "blocks.1", "first", "last"]


def test_blocks_are_units_by_the_names_of_their_classes() -> None:
    assert names_of_units(Network(), blocks=["Block"]) == ["blocks.0", "blocks.1"]


def test_modules_of_a_size_are_units_innermost_first() -> None:
    assert names_of_units(Network(), min_parameters=20) == [
        *("blocks.0.inner", "blocks.0.outer", "blocks.1.inner", "blocks.1.outer")
    ]
    assert names_of_units(Network(), min_parameters=21) == ["blocks.0", "blocks.1"]


def test_what_is_tied_is_in_one_unit() -> None:
    model = Network()
    model.blocks[1].inner.weight = model.blocks[0].inner.weight
    assert names_of_units(model) == ["first", "last"]


def test_an_inner_unit_comes_before_the_one_around_it() -> None:
    model = Network()
    found = units(model, Sharding(kind="full", blocks=("Block", "Linear")))
    assert found.index(model.blocks[0].inner) < found.index(model.blocks[0])


@pytest.mark.parametrize(
    ("name", "said"),
    [("Blok", 'is of the class "Blok"; write "Block"'), ("Attention", 'there are "Block", "Linear", "ModuleList"')],
)
def test_a_class_that_is_not_there_is_named_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_blocks(Network(), Sharding(kind="full", blocks=(name,)))


@pytest.mark.parametrize(
    ("words", "device", "backend", "automatic", "said"),
    [
        ({"offload": "cpu"}, "cpu", "gloo", True, "needs a GPU"),
        ({}, "cuda", "gloo", True, "ranks of a node share one"),
        ({}, "cpu", "gloo", False, "automatic_optimization = False"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    words: dict[str, Any], device: str, backend: str, automatic: bool, said: str
) -> None:
    server: Any = SimpleNamespace(automatic_optimization=automatic)
    with pytest.raises(ConfigError, match=said):
        check_sharding(server, Sharding(kind="full", **words), torch.device(device), backend)


def network() -> Network:
    """The same one each time, in 64 bits."""
    model = Network().double()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


class NetworkServer(TorchServer):
    change: Any = staticmethod(lambda model: torch.optim.Adam(model.parameters(), lr=0.01))

    def prepare_training_attributes(self) -> Any:
        model = network()
        return model, self.change(model)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.model(batch) ** 2).mean()


def made(change: Any = None, **training: Any) -> NetworkServer:
    server = NetworkServer(settings(sharding=FULL, **training))
    if change is not None:
        server.change = change
    server.union_mean = UnionMean(SoloRanks())
    server.progress = Progress(1)
    return server


def batches(num: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num):
        yield torch.randn(5, 3, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def torch_keeps_the_first_group() -> None:
    """DTensor remembers the operations that it has seen, with the mesh of the first ones, and so its sockets."""
    server = made()
    with TorchStep(server, SoloRanks(), server.config) as step:
        rows = next(batches(1))
        step.run(UnionBatch(own=batch_of(rows, 5), sizes=(5,)), rows, 0)


def adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1)


@pytest.mark.parametrize("optimizer", [None, adagrad], ids=["Adam", "Adagrad, which has a state from the beginning"])
def test_one_rank_trains_with_shards_what_a_plain_loop_trains(optimizer: Any) -> None:
    server = made(optimizer, clip_norm=0.05)
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index, rows in enumerate(batches(5)):
            step.run(UnionBatch(own=batch_of(rows, 5), sizes=(5,)), rows, index)
            with step.evaluating(), step.together():
                server.model(rows)
            assert all(map(is_shard, server.model.parameters()))
        found = [each.full_tensor().detach() for each in server.model.parameters()]
    model = network()
    plain = (optimizer or NetworkServer.change)(model)
    for rows in batches(5):
        plain.zero_grad()
        (model(rows) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        plain.step()
    for own, expected in zip(found, model.parameters(), strict=True):
        np.testing.assert_allclose(own, expected.detach(), rtol=1e-12)


def hooked(model: nn.Module) -> torch.optim.Optimizer:
    next(model.parameters()).register_hook(lambda gradient: gradient)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_model_without_a_forward_pass_is_refused() -> None:
    server = made()
    server.prepare_training_attributes = lambda: (  # type: ignore[method-assign]
        nn.ModuleDict({"net": (net := network())}),
        torch.optim.SGD(net.parameters(), lr=0.1),
    )
    with (
        pytest.raises(StreamServerError, match="a ModuleDict as the model"),
        TorchStep(server, SoloRanks(), server.config),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS"),
        (hooked, r"first.weight of the model has a hook \(register_hook\), which would not be called"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_words(change: Any, said: str) -> None:
    server = made(change)
    with pytest.raises(StreamServerError, match=said), TorchStep(server, SoloRanks(), server.config):
        pass


def test_a_sharded_model_says_where_it_can_be_copied() -> None:
    server = made()
    with (
        TorchStep(server, SoloRanks(), server.config),
        pytest.raises(StreamServerError, match="copy it in prepare_training_attributes"),
    ):
        torch.optim.swa_utils.AveragedModel(server.model)
