"""Parameters that a training was to change, and has not."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from stream_server.server.progress.batches import StepOutcome
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.untrained_parameters import UntrainedParameters
from stream_server.server.training.torch.learning_rates import LearningRates
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.torch_servers import union_batch_of

IN_OPTIMIZERS = " parameters in optimizers did not change in 2 updates, not by one bit: "
IN_NONE = " parameters require a gradient, but are in no optimizer, and did not change in 2 updates: "


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Encoder(TorchServer):
    """An encoder and a head."""

    def prepare_training_attributes(self) -> Any:
        return self.prepared(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1, bias=False)))

    def prepared(self, model: nn.Module) -> Any:
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch).mean()


class HeadOnly(Encoder):
    def prepared(self, model: Any) -> Any:
        return model, torch.optim.SGD(model[1].parameters(), lr=0.1)


class Frozen(HeadOnly):
    def prepared(self, model: Any) -> Any:
        model[0].requires_grad_(False)
        return super().prepared(model)


class NewHead(Encoder):
    def prepared(self, model: Any) -> Any:
        made = super().prepared(model)
        model[1] = nn.Linear(2, 1, bias=False)
        return made


class Detached(Encoder):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model[1](self.model[0](batch).detach()).mean()


class InAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(1, 2)]
        self.scales = {"whole": nn.Parameter(torch.ones(1))}
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers[0](x)) * self.scales["whole"]


class Hidden(Encoder):
    def prepare_training_attributes(self) -> Any:
        return self.prepared(InAList())


class HiddenButTrained(Encoder):
    def prepare_training_attributes(self) -> Any:
        model = InAList()
        hidden = [*model.layers[0].parameters(), model.scales["whole"]]
        return model, torch.optim.SGD([*model.parameters(), *hidden], lr=0.1)


class IdleAverage(Encoder):
    def prepared(self, model: Any) -> Any:
        self.average = AveragedModel(nn.Sequential(copy.deepcopy(model[1])))
        return super().prepared(model)


class NoRate(Encoder):
    def prepared(self, model: Any) -> Any:
        return model, torch.optim.SGD(model.parameters(), lr=0.0)


class ClearedTooLate(Encoder):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss


class WithoutBackward(ClearedTooLate):
    def manual_backward(self, loss: Any, **options: Any) -> None:
        pass


class InShortNumbers(Encoder):
    """Its weights are 1, and its gradients too: in bfloat16 the next smaller number is 1 - 1/256.

    So half of the weights, whose rate is less than half of that, cannot change.
    """

    rates = (0.001, 0.1)
    per_update = 1.0

    def prepare_training_attributes(self) -> Any:
        model = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in self.rates])
        groups = [{"params": [it], "lr": lr} for it, lr in zip(model, self.rates, strict=True)]
        optimizer = torch.optim.SGD(groups)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda num: self.per_update**num)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return sum(it.sum() for it in self.model)


class AllInShortNumbers(InShortNumbers):
    rates = (0.001, 0.001)


class ByHandInShortNumbers(InShortNumbers):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        self.optimizer.step()


class LargeInShortNumbers(InShortNumbers):
    rates = (0.01, 0.1)


class WarmUp(InShortNumbers):
    """Its rates grow from update to update, until all weights change."""

    rates = (0.0015, 0.1)
    per_update = 1.01


class SometimesRounded(InShortNumbers):
    """Adds up what is rounded away, and gives it to the weights once it is large enough."""

    def prepare_training_attributes(self) -> Any:
        model, optimizer, scheduler = super().prepare_training_attributes()
        left = [torch.zeros(4) for _ in model]

        def add(*_: Any) -> None:
            for rest, it, group in zip(left, model, optimizer.param_groups, strict=True):
                rest -= group["lr"]
                if rest[0] <= -0.01:
                    it.data += rest
                    rest.zero_()

        optimizer.register_step_post_hook(add)
        return model, optimizer, scheduler


STUCK = r"{} of the weights in bfloat16 that had a gradient did not change in 16 updates, .* \"bf16-mixed\"; or take a"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (InShortNumbers, [f"1 of 2 {IN_OPTIMIZERS[1:]}0. {STUCK.format('50%')}"]),
        (AllInShortNumbers, [f"2 of 2 {IN_OPTIMIZERS[1:]}0, 1. {STUCK.format('100%')}"]),
        (ByHandInShortNumbers, [f"1 of 2 {IN_OPTIMIZERS[1:]}0. {STUCK.format('50%')}"]),
        (LargeInShortNumbers, []),
        (WarmUp, []),
        (SometimesRounded, []),
    ],
)
def test_weights_that_are_too_short_for_their_updates_are_told_once_and_while_they_are_trained(
    kind: type[Encoder], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = trained(kind, num=32, precision="32-true")
    assert len(found.warnings) == len(said)
    assert all(map(re.match, said, (it.replace("32 updates", "2 updates") for it in found.warnings)))
    assert len(caplog.messages) == len(said)
    assert found.are_all == (kind is AllInShortNumbers)


def test_single_weights_that_are_too_short_for_their_updates_are_told() -> None:
    class Partly(InShortNumbers):
        def prepare_training_attributes(self) -> Any:
            model, _, _ = super().prepare_training_attributes()
            for it in model:
                it.data[:2] = 1 / 64
            return model, torch.optim.SGD(model.parameters(), lr=0.001)

    [said] = trained(Partly, num=32, precision="bf16-true").warnings
    assert re.match(STUCK.format("50%"), said)


def test_a_parameter_that_is_alone_in_its_optimizer_and_too_short_for_its_updates_is_told() -> None:
    class Alone(InShortNumbers):
        def prepare_training_attributes(self) -> Any:
            model, _, _ = super().prepare_training_attributes()
            model[1].requires_grad_(False)
            return model, torch.optim.SGD([model[0]], lr=0.001)

    assert any(re.search(STUCK.format("100%"), said) for said in trained(Alone, num=32, precision="32-true").warnings)


def trained(
    kind: type[Encoder], *, num: int = 2, is_restarted: bool = False, precision: str = "64-true"
) -> UntrainedParameters:
    """The parameters of a server after some updates, with a restart between them."""
    server = kind(settings(precision=precision))
    with TorchStep(server, SoloRanks(), server.config) as step:
        found = UntrainedParameters(step)
        found.on_train_start(server)
        rates = LearningRates(server)
        for index in range(num):
            union_batch, data = union_batch_of([0.5, 0.75])
            step.run(union_batch, data, index)
            server.progress.count_update(StepOutcome())
            rates.on_step_end(server)
            if is_restarted:
                state, found = from_bytes(to_bytes(found.state_dict())), UntrainedParameters(step)
                found.load_state_dict(state)
                found.on_train_start(server)
        found.on_train_end(server)
    return found


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Encoder, []),
        (Frozen, []),
        (HiddenButTrained, []),
        (Detached, ["2 of 3" + IN_OPTIMIZERS + "0.weight, 0.bias. No gradient"]),
        (HeadOnly, ["2" + IN_NONE + "0.weight, 0.bias. Make"]),
        (Hidden, ["3" + IN_NONE + "layers.0.weight, layers.0.bias, scales.whole. Make"]),
        (IdleAverage, ["1" + IN_NONE + "average.module.0.weight. Make"]),
        (
            NewHead,
            [
                "1 of 3" + IN_OPTIMIZERS + "parameter 2 in group 0 of optimizer 0. No gradient",
                "1" + IN_NONE + "1.weight. Make",
            ],
        ),
    ],
)
def test_parameters_that_a_training_has_left_as_they_were_are_named(
    kind: type[Encoder], said: list[str], is_restarted: bool
) -> None:
    found = trained(kind, is_restarted=is_restarted)
    assert [text[: len(start)] for text, start in zip(found.warnings, said, strict=True)] == said
    assert not found.are_all


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("kind", [NoRate, ClearedTooLate, WithoutBackward])
def test_a_training_that_has_left_all_of_them_is_known(kind: type[Encoder], is_restarted: bool) -> None:
    found = trained(kind, is_restarted=is_restarted)
    assert found.are_all
    [said] = found.warnings
    assert re.match("3 of 3" + IN_OPTIMIZERS, said)


def test_what_was_not_noted_at_the_start_is_not_judged() -> None:
    server = NoRate(settings())
    server.progress.count_update(StepOutcome())
    with TorchStep(server, SoloRanks(), server.config) as step:
        found = UntrainedParameters(step)
        found.on_train_start(server)
        found.on_train_end(server)
    assert (found.warnings, found.are_all) == ([], False)
