"""A fused optimizer is launched before anybody reads the loss and the norm, and gives what is given without that.

For these tests the CPU, whose fused optimizers skip as those of a GPU do, is a device that is waited for.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from stream_server.errors import UserCodeError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch import precision
from stream_server.server.training.torch.step import TorchStep
from stream_server.storage.plain_state import to_bytes
from tests.support.settings import settings
from tests.support.torch_servers import Scale, norms, union_batch_of

NAN, INF = math.nan, math.inf
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(SGD, lr=0.01),
    "momentum": partial(SGD, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": partial(Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(AdamW, lr=0.01),
    "Adagrad": partial(Adagrad, lr=0.01),
}
LIMITS: list[dict[str, Any]] = [{}, {"clip_norm": 0.5}, {"clip_value": 0.3}, {"accumulate": 3, "clip_norm": 0.5}]


@pytest.fixture(autouse=True)
def _waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(precision, "_is_waited_for", lambda _: True)


class Roots(Scale):
    """Two weights of 1. At 0 the gradient of one of them is NaN, below 0 the loss, whose gradient is 0."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer], *, fused: bool = True, **training: Any) -> None:
        super().__init__(settings(precision="32-true", **training))
        self.make = partial(make, fused=fused)

    def prepare_training_attributes(self) -> Any:
        model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
        for layer in model:
            nn.init.ones_(layer.weight)
        return model, self.make(model.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch[0] < 0:
            return (self.model[0](batch) + self.model[1](batch))[batch > 0].mean()
        return self.model[0](batch).mean() + (self.model[1].weight * batch).sqrt().mean()


def trained(server: Scale, values: list[float]) -> tuple[list[Any], bytes, Any]:
    """The outcomes, the state of the model and of the optimizer, and the norms."""
    with TorchStep(server, SoloRanks(), server.config) as step:
        outcomes = []
        for index, value in enumerate(values):
            union_batch, data = union_batch_of([value, 2 * value])
            outcomes.append(step.run(union_batch, step.to_device(data.float()), index))
        state = step.state_dict()
        return outcomes, to_bytes(state), norms(outcomes)


GOOD = [0.5, 1.0, 0.25]
# With three batches for each update, three of eight are made.
VALUES = [NAN, 0.5, 1.0, *GOOD, 0.0, 0.75, 0.5, 1.0, -1.0, 0.5, *GOOD, INF, 0.5, 0.25, 0.5, 0.25, -1.0, *GOOD]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_that_skips_by_itself_leaves_what_is_left_where_the_study_skips(
    make: Callable[..., torch.optim.Optimizer], limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trained(Roots(make, **limits), VALUES)
    other = trained(Roots(make, fused=False, **limits), VALUES)
    with monkeypatch.context() as patched:
        patched.setattr(precision, "_skips_by_itself", lambda *_: False)
        expected = trained(Roots(make, **limits), VALUES)
    assert repr(found) == repr(expected)
    assert [each.skipped for each in found[0]] == [each.skipped for each in other[0]]
    assert found[2] == pytest.approx(other[2], rel=1e-5)
    assert sum(each.skipped for each in found[0]) == 5


@pytest.mark.parametrize(
    ("values", "said"),
    [([0.5, 0.0, 0.0], "of batch 0 is not finite"), ([0.5, -1.0, -1.0], "is that of a loss that is not finite")],
)
def test_an_optimizer_that_skips_too_often_ends_the_study(values: list[float], said: str) -> None:
    with pytest.raises(UserCodeError, match=f"{said}, like those of the 1 updates before, and"):
        trained(Roots(OPTIMIZERS["Adam"], max_nonfinite=1), values)


def add_hook(optimizer: torch.optim.Optimizer, called: list[bool], stack: ExitStack) -> None:
    optimizer.register_step_post_hook(lambda *_: called.append(True))


def add_hook_of_all(optimizer: torch.optim.Optimizer, called: list[bool], stack: ExitStack) -> None:
    handle = register_optimizer_step_post_hook(lambda *_: called.append(True))
    stack.callback(handle.remove)


def replace_step(optimizer: torch.optim.Optimizer, called: list[bool], stack: ExitStack) -> None:
    step: Any = optimizer.step

    def counted(*arguments: Any, **options: Any) -> Any:
        called.append(True)
        return step(*arguments, **options)

    optimizer.step = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("add", [add_hook, add_hook_of_all, replace_step])
def test_code_of_the_user_around_a_step_is_called_for_updates_that_are_made_alone(
    add: Callable[[torch.optim.Optimizer, list[bool], ExitStack], None],
) -> None:
    called: list[bool] = []
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> torch.optim.Optimizer:
            optimizer = Adam(*arguments, **options)
            add(optimizer, called, stack)
            return optimizer

        outcomes, *_ = trained(Roots(make), [0.5, 0.0, 0.5])
    assert [each.skipped for each in outcomes] == [False, True, False]
    assert len(called) == 2


class Reads(TorchDispatchMode):
    """Notes steps of fused optimizers, and what a device would be waited for, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith("_fused") or name in {"_local_scalar_dense", "is_nonzero", "equal", "nonzero"}:
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operations of a block, in order; `tolist` on the CPU is none for torch, so it is noted by hand."""
    tolist: Any = Tensor.tolist
    with Reads() as mode, monkeypatch.context() as patched:
        patched.setattr(Tensor, "tolist", lambda self: (mode.noted.append("tolist"), tolist(self))[1])
        yield mode.noted


class Regression(Roots):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model[0](batch) + self.model[1](batch)).square().mean()


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_nothing_is_read_between_the_forward_pass_and_the_step_of_a_fused_optimizer(
    make: Callable[..., torch.optim.Optimizer], limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Regression(make, **limits)
    num = limits.get("accumulate", 1)
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index in range(2 * num):
            union_batch, data = union_batch_of([0.5, 1.0])
            with reads(monkeypatch) as noted:
                step.run(union_batch, data.float(), index)
    [launched, *after] = noted
    assert launched.startswith("_fused")
    assert after == ["tolist"]
