"""Tensors as plain state."""

import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from stream_server.errors import DamagedCheckpoint
from stream_server.server.training.torch.state import (
    plain,
    restored,
    set_torch_random_states,
    torch_random_states,
)
from stream_server.storage.plain_state import from_bytes, read_state, to_bytes

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float8_e4m3fn,
]


def round_trip(state: Any) -> Any:
    return restored(from_bytes(to_bytes(plain(state))))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_tensors_of_every_type_and_shape_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 5).to(dtype)
    assert same(round_trip(tensor), tensor)


@pytest.mark.parametrize(
    "view",
    [lambda it: it.T, lambda it: it[::2], lambda it: it[:, 1], lambda it: it[:1].expand(3, 4), lambda it: it.flip(0)],
)
def test_views_come_back_as_what_they_show(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = view(torch.arange(12.0).reshape(3, 4))
    assert same(round_trip(tensor), tensor)


def test_conjugates_and_negatives_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert same(round_trip(tensor.conj()), tensor.conj().resolve_conj())
    assert same(round_trip(tensor.conj().imag), tensor.conj().imag.resolve_neg())


def test_every_bit_comes_back_even_of_what_is_no_number() -> None:
    bits = torch.tensor([0x7F800001, -1, 0, -(2**31)], dtype=torch.int32)
    assert same(round_trip(bits.view(torch.float32)), bits.view(torch.float32))


def test_parameters_come_back_as_tensors() -> None:
    back = round_trip({"weight": nn.Parameter(torch.ones(2))})["weight"]
    assert type(back) is torch.Tensor
    assert not back.requires_grad


def test_what_is_trained_later_does_not_show() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)
    state = plain([tensor, {"array": array}])
    tensor += 1
    array += 1
    back = restored(state)
    assert back[0].tolist() == back[1]["array"].tolist() == [0, 0, 0]


def test_containers_keep_their_kind() -> None:
    state = {
        "ordered": OrderedDict(a=torch.ones(1)),
        "default": defaultdict(dict, {0: {"step": torch.ones(())}}),
        "tuple": (1, torch.Size([2, 3]), None),
        "list": [0.5, "x"],
    }
    back = round_trip(state)
    assert type(back["ordered"]) is OrderedDict
    assert back["default"] == {0: {"step": 1.0}}
    assert (back["tuple"], back["list"]) == ((1, (2, 3), None), [0.5, "x"])


def test_the_versions_of_a_modules_state_come_back() -> None:
    state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    back = round_trip(state)
    assert back._metadata == state._metadata
    assert list(back) == list(state)
    assert all(same(back[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(2).to_sparse(), r"optimizer\.state\.0\.x is a torch\.sparse_coo tensor"),
        (torch.ones(2, device="meta"), r"optimizer\.state\.0\.x is a torch\.strided tensor on meta"),
        (nn.Linear(1, 1), r"optimizer\.state\.0\.x is a Linear, but only"),
        ({"__tensor__": 1}, r"optimizer\.state\.0\.x has a key '__tensor__'"),
        (nn.ModuleDict(), r"optimizer\.state\.0\.x is a ModuleDict"),
    ],
    ids=["sparse", "meta", "module", "tag", "modules"],
)
def test_what_cannot_be_saved_is_named(value: Any, text: str) -> None:
    state = {"state": {0: {"x": value}}}
    with pytest.raises(TypeError, match=text):
        to_bytes_of(plain(state, "optimizer"), "optimizer")


def to_bytes_of(state: Any, name: str) -> None:
    from stream_server.storage.plain_state import encode

    encode(state, name)


OPTIMIZERS = [
    lambda it: optim.SGD(it, lr=0.1, momentum=0.9, nesterov=True),
    lambda it: optim.Adam(it, lr=0.01, amsgrad=True),
    lambda it: optim.Adam(it, lr=0.01, fused=True),
    lambda it: optim.AdamW(it, lr=torch.tensor(0.01)),
    lambda it: optim.AdamW(it, amsgrad=True, fused=True),
    lambda it: optim.NAdam(it),
    lambda it: optim.RAdam(it),
    lambda it: optim.Adagrad(it),
    lambda it: optim.Adadelta(it),
    lambda it: optim.Adamax(it),
    lambda it: optim.ASGD(it),
    lambda it: optim.RMSprop(it, momentum=0.5, centered=True),
    lambda it: optim.Rprop(it),
    lambda it: optim.LBFGS(it, lr=0.1, max_iter=3),
]
SCHEDULERS = [
    lambda it: optim.lr_scheduler.StepLR(it, 2),
    lambda it: optim.lr_scheduler.MultiStepLR(it, [1, 3, 3]),
    lambda it: optim.lr_scheduler.ConstantLR(it),
    lambda it: optim.lr_scheduler.LinearLR(it),
    lambda it: optim.lr_scheduler.ExponentialLR(it, 0.9),
    lambda it: optim.lr_scheduler.PolynomialLR(it),
    lambda it: optim.lr_scheduler.CosineAnnealingLR(it, 7),
    lambda it: optim.lr_scheduler.CosineAnnealingWarmRestarts(it, 3),
    lambda it: optim.lr_scheduler.CyclicLR(it, 0.01, 0.1, step_size_up=3),
    lambda it: optim.lr_scheduler.OneCycleLR(it, 0.1, 20),
    lambda it: optim.lr_scheduler.LambdaLR(it, lambda incarnation: 0.9**incarnation),
    lambda it: optim.lr_scheduler.ReduceLROnPlateau(it, patience=1),
    lambda it: optim.lr_scheduler.SequentialLR(
        it, [optim.lr_scheduler.ConstantLR(it), optim.lr_scheduler.ExponentialLR(it, 0.9)], [3]
    ),
    lambda it: optim.lr_scheduler.ChainedScheduler(
        [optim.lr_scheduler.ConstantLR(it), optim.lr_scheduler.ExponentialLR(it, 0.9)]
    ),
]


class Learner:
    """A small model under training."""

    def __init__(self, make_optimizer: Any, make_scheduler: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = make_optimizer(self.model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scheduler = make_scheduler(self.optimizer)
        self.parts = (self.model, self.optimizer, self.scheduler)

    def train(self, steps: range) -> list[float]:
        losses = []
        for step in steps:
            data = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))

            def closure(data: torch.Tensor = data) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.model(data).square().mean()
                loss.backward()
                return loss

            loss = float(self.optimizer.step(closure).detach())
            plateau = isinstance(self.scheduler, optim.lr_scheduler.ReduceLROnPlateau)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.scheduler.step(loss) if plateau else self.scheduler.step()
            losses.append(loss)
        return losses


def resumes_bit_by_bit(make_optimizer: Any, make_scheduler: Any) -> None:
    undisturbed = Learner(make_optimizer, make_scheduler)
    undisturbed.train(range(5))
    saved = to_bytes(plain([part.state_dict() for part in undisturbed.parts], "model"))
    expected = undisturbed.train(range(5, 10))
    resumed = Learner(make_optimizer, make_scheduler)
    for part, state in zip(resumed.parts, restored(from_bytes(saved)), strict=True):
        part.load_state_dict(state)
    assert resumed.train(range(5, 10)) == expected
    weights = zip(resumed.model.state_dict().values(), undisturbed.model.state_dict().values(), strict=True)
    assert all(same(one, other) for one, other in weights)


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: type(make([torch.ones(1)])).__name__)
def test_every_optimizer_goes_on_bit_by_bit(make: Any) -> None:
    resumes_bit_by_bit(make, SCHEDULERS[4])


@pytest.mark.parametrize("make", SCHEDULERS, ids=range(len(SCHEDULERS)))
def test_every_scheduler_goes_on_bit_by_bit(make: Any) -> None:
    resumes_bit_by_bit(OPTIMIZERS[0], make)


def test_the_generator_of_torch_goes_on() -> None:
    before = torch_random_states()
    saved = to_bytes(torch_random_states())
    expected = [torch.rand(3).tolist(), torch.randn(3).tolist()]
    set_torch_random_states(from_bytes(saved))
    assert [torch.rand(3).tolist(), torch.randn(3).tolist()] == expected
    set_torch_random_states(before)


@pytest.mark.parametrize(
    "junk", [None, {}, {"cpu": np.zeros(3), "cuda": []}, {"cpu": np.zeros(3, np.uint8), "cuda": []}]
)
def test_junk_is_no_state_of_a_generator(junk: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="random generators cannot be restored"):
        set_torch_random_states(junk)


@pytest.mark.parametrize(
    "junk",
    [
        None,
        [],
        ["float32", [1], None],
        ["Tensor", [1], np.zeros(4, np.uint8)],
        ["nothing", [1], np.zeros(4, np.uint8)],
        ["float32", [2], np.zeros(4, np.uint8)],
        ["float32", [1], np.zeros(3, np.uint8)],
        ["float32", [1], np.zeros(1, np.float32)],
        ["float32", ["a"], np.zeros(4, np.uint8)],
    ],
    ids=str,
)
def test_junk_is_no_tensor(junk: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="a tensor cannot be restored"):
        restored({"__tensor__": junk})


@pytest.mark.parametrize("junk", [None, [], [1, 2], [{}, 1], [{}, [1]]], ids=str)
def test_junk_is_no_state_of_a_module(junk: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="a module's state cannot be restored"):
        restored({"__module_state__": junk})


def test_an_array_of_bytes_that_is_no_tensor_is_read_from_a_deferred_file(tmp_path: Path) -> None:
    mask = np.arange(70_000, dtype=np.uint8)
    (tmp_path / "state").write_bytes(to_bytes({"extra": mask}))
    found = restored(read_state(tmp_path / "state", deferred=True))["extra"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, mask)
