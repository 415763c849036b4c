"""The torch step on one rank; tests/mpi compares several with one."""

import math
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

import stream_server
from stream_server.buffers import WindowShape
from stream_server.config.training_sections import RolloutSettings
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.devices import limit_threads
from stream_server.server.training.torch.framework import TorchCollate
from stream_server.server.training.torch.precision import LossScaling
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.training.validation.rollout import Rollouts
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of
from tests.support.torch_servers import ExactScaling, Scale, train, union_batch_of, weight


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_step_updates_the_model_and_tells_the_loss() -> None:
    server = Scale(settings())
    assert train(server, [[0.25, 0.75], [0.5]]) == [StepOutcome(loss=0.5), StepOutcome(loss=0.25), None]
    assert weight(server) == 0.0


def test_accumulated_batches_count_by_their_samples() -> None:
    server = Scale(settings(accumulate=2))
    outcomes = train(server, [[0.25, 0.75], [0.8]])
    assert outcomes == [StepOutcome(loss=0.5, updated=False), StepOutcome(loss=0.8), None]
    assert weight(server) == pytest.approx(1 - (0.25 + 0.75 + 0.8) / 3, rel=1e-15)


def test_an_accumulation_that_is_cut_short_is_ended_with_what_it_has() -> None:
    server = Scale(settings(accumulate=3))
    assert train(server, [[0.25, 0.75], [0.8]])[-1] == StepOutcome()
    assert weight(server) == pytest.approx(1 - (0.25 + 0.75 + 0.8) / 3, rel=1e-15)


def test_the_gradient_is_clipped_after_it_is_that_of_the_union() -> None:
    server = Scale(settings(accumulate=2, clip_norm=0.1))
    train(server, [[0.25, 0.75], [0.8]])
    assert weight(server) == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_an_update_that_is_not_finite_is_skipped_and_said(
    clip_norm: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    server = Scale(settings(clip_norm=clip_norm))
    outcomes = train(server, [[float("nan")], [0.5]])
    assert [outcome.skipped for outcome in outcomes if outcome] == [True, False]
    assert weight(server) == pytest.approx(0.5)
    assert "the update is skipped" in caplog.text


class Normed(Scale):
    """Leaves its model in the `mode` that a batch names: above 0 in training, else in evaluation."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.model(batch).mean()
        self.model.train(bool(batch[0] > 0))
        return loss


def test_a_model_that_is_left_in_evaluation_mode_is_told_once() -> None:
    server = Normed(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index, (value, num_warnings) in enumerate([(1.0, 0), (-1.0, 0), (1.0, 1), (-1.0, 1), (1.0, 1)]):
            union_batch, data = union_batch_of([value, 0.5])
            step.run(union_batch, step.to_device(server.collate.convert(data)), index)
            assert len(step.warnings) == num_warnings
    assert "Normed or a callback has called its eval()" in step.warnings[0]


def test_a_model_that_was_never_in_training_mode_is_the_users_choice() -> None:
    class Frozen(Normed):
        def prepare_training_attributes(self) -> Any:
            model, optimizer = super().prepare_training_attributes()
            return model.eval(), optimizer

        training_step = Scale.training_step

    server = Frozen(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        union_batch, data = union_batch_of([0.5, 1.0])
        step.run(union_batch, step.to_device(server.collate.convert(data)), 0)
    assert step.warnings == ()


@pytest.mark.parametrize(("in_training", "num_warnings"), [(False, 0), (True, 1)])
def test_a_validation_that_changes_the_statistics_of_the_model_is_told_once(
    *, in_training: bool, num_warnings: int
) -> None:
    server = Normed(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        for _ in range(2):
            with step.evaluating():
                server.model.train(in_training)(torch.ones(4, 1))
            assert server.model.training
    assert len(step.warnings) == num_warnings
    assert all("a validation changes 1.num_batches_tracked of the model" in it for it in step.warnings)


class ByHand(Scale):
    """Clears the gradients before each `every`-th backward pass, and steps after it; 0: never."""

    automatic_optimization = False

    def __init__(self, config: Any, every: int, *, set_to_none: bool = True) -> None:
        super().__init__(config)
        self.every, self.set_to_none = every, set_to_none

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if self.every and batch_idx % self.every == 0:
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        self.manual_backward(self.model(batch).mean())
        if not self.every or batch_idx % self.every == self.every - 1:
            self.optimizer.step()


@pytest.mark.parametrize(
    ("every", "set_to_none", "num_warnings"), [(0, True, 1), (1, True, 0), (1, False, 0), (2, True, 0)]
)
def test_gradients_that_nobody_clears_between_two_steps_are_told(
    every: int, *, set_to_none: bool, num_warnings: int
) -> None:
    server = ByHand(settings(), every, set_to_none=set_to_none)
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index in range(4):
            union_batch, data = union_batch_of([0.5])
            step.run(union_batch, step.to_device(server.collate.convert(data)), index)
    assert len(step.warnings) == num_warnings
    assert all("twice without clearing its gradients" in it for it in step.warnings)


def test_two_optimizers_that_each_clear_their_own_gradients_are_told_of_nothing() -> None:
    class Both(Scale):
        automatic_optimization = False

        def prepare_training_attributes(self) -> Any:
            model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
            return model, [torch.optim.SGD(it.parameters(), lr=0.1) for it in model]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizer:
                optimizer.zero_grad()
                self.manual_backward(self.model(batch).mean())
                optimizer.step()

    server = Both(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index in range(4):
            union_batch, data = union_batch_of([0.5])
            step.run(union_batch, step.to_device(server.collate.convert(data)), index)
    assert step.warnings == ()


class Masked(Scale):
    """Its loss is the mean over the samples above 0: of none of them it is NaN, and its gradient 0."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch)[batch > 0].mean()


@pytest.mark.parametrize("precision", [None, ExactScaling(1.0)], ids=["as it is", "with a scaled loss"])
def test_an_update_whose_loss_is_not_finite_is_skipped_although_its_gradient_is_0(
    precision: LossScaling | None,
) -> None:
    server = Masked(settings(max_nonfinite=1))
    outcomes = train(server, [[-1.0], [0.5]], precision=precision)
    assert [outcome.skipped for outcome in outcomes if outcome] == [True, False]
    assert weight(server) == pytest.approx(0.5)


def test_losses_that_are_not_finite_end_the_study_as_gradients_do() -> None:
    said = r"the gradient of batch 0 is that of a loss that is not finite, like those of the 1 updates before, and "
    with pytest.raises(UserCodeError, match=said):
        train(Masked(settings(max_nonfinite=1)), [[-1.0], [-1.0]])


def test_an_update_that_is_not_finite_ends_the_study_when_told_to() -> None:
    said = r"is not finite, and training\.nonfinite is stop\. .* \(simulation, time step\): \(7, 0\), \(7, 1\)$"
    with pytest.raises(UserCodeError, match=said):
        train(Scale(settings(nonfinite="stop")), [[0.5], [float("inf"), 0.5]])


def test_too_many_skipped_updates_in_a_row_end_the_study() -> None:
    bad, good = [float("nan")], [0.5]
    train(Scale(settings(max_nonfinite=2)), [bad, bad, good, bad, bad])
    said = r"the gradient of batch 0 .* 2 updates before, and training\.max_nonfinite is 2\. .*: \(7, 0\)$"
    with pytest.raises(UserCodeError, match=said):
        train(Scale(settings(max_nonfinite=2)), [bad, bad, bad])


def test_an_error_names_all_batches_of_the_accumulation_and_no_others() -> None:
    server = Scale(settings(nonfinite="stop", accumulate=2))
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index, values in enumerate([[0.5], [0.5], [0.5], [float("nan")]]):
            union_batch, data = union_batch_of(values, first_step=10 * index)
            if index < 3:
                step.run(union_batch, data, index)
        with pytest.raises(UserCodeError, match=r"2 samples of it.*: \(7, 20\), \(7, 30\)$"):
            step.run(union_batch, data, 3)


def test_the_step_tells_its_phases() -> None:
    server = Scale(settings())
    train(server, [[0.5]])
    assert set(server.phases.seconds) == {"forward", "backward", "optimizer"}


def test_manual_backward_is_a_phase_of_its_own() -> None:
    server = Manual(settings())
    train(server, [[0.5]])
    assert set(server.phases.seconds) == {"forward", "backward"}


class Manual(Scale):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizer.step()


def test_manual_optimisation_steps_by_itself_and_needs_no_loss() -> None:
    server = Manual(settings())
    assert train(server, [[0.25], [0.5]]) == [StepOutcome(loss=None), StepOutcome(loss=None), None]
    assert weight(server) == 0.25


@pytest.mark.parametrize("limit", [{"clip_norm": 0.1}, {"clip_value": 0.1}])
def test_the_gradient_of_each_optimizer_is_clipped_at_its_step(limit: dict[str, Any]) -> None:
    server = Manual(settings(**limit))
    train(server, [[0.25], [0.05]])
    assert weight(server) == pytest.approx(0.85, rel=1e-5)


def test_a_gradient_that_is_not_finite_spoils_no_other_of_an_optimizer_that_is_stepped_by_hand() -> None:
    class TwoScales(Manual):
        def prepare_training_attributes(self) -> Any:
            self.other = nn.Parameter(torch.ones(()))
            model, _ = super().prepare_training_attributes()
            return model, torch.optim.SGD([*model.parameters(), self.other], lr=0.1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.optimizer.zero_grad()
            self.manual_backward(self.model(batch).mean() + math.nan * self.other)
            self.optimizer.step()

    server = TwoScales(settings(clip_norm=0.5))
    train(server, [[0.25]])
    assert server.other.isnan()
    assert math.isfinite(weight(server))


def test_manual_optimisation_refuses_what_it_would_ignore() -> None:
    server = Manual(settings(accumulate=2))
    with pytest.raises(ConfigError, match=r"training\.accumulate must be left out"):
        TorchStep(server, SoloRanks(), server.config)


def test_optimizers_that_are_stepped_at_every_other_batch_make_half_as_many_updates() -> None:
    class EveryOther(Scale):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx) / 2)
            if batch_idx % 2:
                self.optimizer.step()
                self.optimizer.zero_grad()

    server = EveryOther(settings())
    outcomes = train(server, [[0.25], [0.5], [0.25]])
    assert [outcome and outcome.updated for outcome in outcomes] == [False, True, False, True]
    # No optimizer has used the last gradient.
    assert outcomes[-1] == StepOutcome(skipped=True)
    assert weight(server) == 0.625


def test_a_step_of_the_optimizer_itself_counts_as_one_of_its_wrapper() -> None:
    class Unwrapped(Manual):
        def prepare_training_attributes(self) -> Any:
            model, self.own = super().prepare_training_attributes()
            return model, self.own

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.own.zero_grad()
            self.manual_backward(self.model(batch).mean())
            self.own.step()

    assert train(Unwrapped(settings()), [[0.25]]) == [StepOutcome(), None]


def test_without_a_step_of_an_optimizer_nothing_is_trained() -> None:
    class NeverStepping(Scale):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx))

    outcomes = train(NeverStepping(settings()), [[0.25], [0.5]])
    assert outcomes == [StepOutcome(updated=False), StepOutcome(updated=False), StepOutcome(skipped=True)]


class Skipping(Scale):
    """Skips batches that begin with a negative number."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.skip_batch() if batch[0] < 0 else super().training_step(batch, batch_idx)


def test_a_batch_is_skipped_by_its_method_only() -> None:
    server = Skipping(settings())
    assert train(server, [[-1.0], [0.25]]) == [StepOutcome(skipped=True), StepOutcome(loss=0.25), None]
    assert weight(server) == 0.75


class OfAnotherModel(Scale):
    def prepare_training_attributes(self) -> Any:
        model, _ = super().prepare_training_attributes()
        return model, torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)


def test_a_gradient_that_reaches_no_parameter_of_the_optimizer_is_no_update() -> None:
    said = r"the gradient of batch 0 reaches no parameter of the optimizer, .* those of the model, like those of the 1"
    server = OfAnotherModel(settings(max_nonfinite=1))
    assert train(server, [[0.5]]) == [StepOutcome(loss=0.5, skipped=True), None]
    with pytest.raises(UserCodeError, match=said):
        train(server, [[0.5], [0.5]])


def test_the_gradient_that_a_callback_leaves_is_no_part_of_the_next_update() -> None:
    server = Scale(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        server.model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
        union_batch, data = union_batch_of([0.25])
        step.run(union_batch, data, 0)
    assert weight(server) == 0.75


class Forgetful(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)


class ForgetfulInDict(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": None}


class OwnLoop(Scale):
    """As in a loop of one's own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        loss.backward()
        self.optimizer.step()


class OwnLoopWithLoss(OwnLoop):
    """Clears the gradients last, and steps the optimizer itself."""

    def prepare_training_attributes(self) -> Any:
        model, self.own = super().prepare_training_attributes()
        return model, self.own

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.model(batch).mean()
        loss.backward()
        self.own.step()
        self.own.zero_grad()
        return self.model(batch).mean()


class OwnBackward(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        loss.backward(retain_graph=True)
        return loss


class OwnZeroGrad(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizer.zero_grad()
        return super().training_step(batch, batch_idx)


class Clipping(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        return loss


class ClippingValues(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
        return super().training_step(batch, batch_idx)


class ClippingOwnLoop(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        return loss


class OwnScaler(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.amp.GradScaler("cpu").scale(super().training_step(batch, batch_idx))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (Clipping, r"Clipping\.training_step clips gradients, but the study makes .* set training\.clip_norm"),
        (ClippingValues, r"ClippingValues\.training_step clips gradients, .* or training\.clip_value"),
        (ClippingOwnLoop, r"ClippingOwnLoop\.training_step backpropagates itself"),
        (OwnScaler, r"OwnScaler\.training_step scales its loss by a GradScaler, .* training\.precision 16-mixed"),
        (
            Forgetful,
            r"Forgetful\.training_step must return the mean loss .* but returned None for batch 0: .*skip_batch",
        ),
        (ForgetfulInDict, r"returned None for batch 0"),
        (OwnLoop, r"OwnLoop\.training_step steps its optimizer itself, .* set automatic_optimization = False"),
        (OwnLoopWithLoss, r"OwnLoopWithLoss\.training_step steps its optimizer itself"),
        (OwnBackward, r"OwnBackward\.training_step backpropagates itself"),
    ],
)
def test_a_step_that_does_not_leave_the_optimisation_to_the_study_is_named_at_the_first_batch(
    server: type[TorchServer], said: str
) -> None:
    with pytest.raises(UserCodeError, match=said):
        train(server(settings()), [[0.5, 0.5]])


class ReadsGradients(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen = [it.grad for it in self.model.parameters()]
        return super().training_step(batch, batch_idx)


class OfItsOwn(Scale):
    """Trains a further module by itself, and clips what that has; the optimizer of the study it only clears."""

    def prepare_training_attributes(self) -> Any:
        self.critic = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        self.of_critic = torch.optim.SGD(self.critic.parameters(), lr=1.0)
        return super().prepare_training_attributes()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.of_critic.zero_grad()
        self.critic(batch).mean().backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 0.1)
        self.of_critic.step()
        self.optimizer.zero_grad()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(ReadsGradients, ["ReadsGradients.training_step reads the gradient"]), (OfItsOwn, []), (Scale, [])],
)
def test_a_step_that_reads_gradients_that_are_yet_to_be_made_is_told(kind: type[TorchServer], said: list[str]) -> None:
    server = kind(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index in range(2):
            union_batch, data = union_batch_of([0.25])
            step.run(union_batch, data, index)
    assert [text[: len(start)] for text, start in zip(step.warnings, said, strict=True)] == said
    assert weight(server) == 0.5
    assert "grad" not in vars(nn.Parameter)


def test_gradients_that_accumulate_are_not_cleared_by_the_user() -> None:
    train(OwnZeroGrad(settings()), [[0.5], [0.5]])
    with pytest.raises(UserCodeError, match=r"OwnZeroGrad\.training_step clears the gradients itself"):
        train(OwnZeroGrad(settings(accumulate=2)), [[0.5], [0.5]])


class Averaged(Scale):
    """Evaluates another module than the one that it trains."""

    def prepare_training_attributes(self) -> Any:
        self.average = nn.Linear(1, 1, bias=False)
        return super().prepare_training_attributes()

    def model_to_evaluate(self) -> nn.Module:
        return self.average


class AveragedByHand(Averaged):
    automatic_optimization = False


def by_the_study(server: Any) -> Any:
    return server.optimizer


def by_itself(server: Any) -> Any:
    return torch.optim.SGD(server.model.parameters(), lr=1.0)


@pytest.mark.parametrize("optimizer_of", [by_the_study, by_itself])
@pytest.mark.parametrize("kind", [Scale, Averaged, AveragedByHand])
def test_a_validation_that_steps_what_is_trained_or_evaluated_is_refused(
    kind: type[TorchServer], optimizer_of: Any
) -> None:
    server = kind(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        said = rf"a validation steps an optimizer of the weights: .* step out of {kind.__name__}\.validation_step"
        with pytest.raises(UserCodeError, match=said), step.evaluating(), torch.enable_grad():
            optimizer_of(server).step()
        optimizer_of(server).step()


def test_a_validation_may_optimize_what_is_not_trained_and_leaves_no_gradient() -> None:
    server = Scale(settings(accumulate=2))
    with TorchStep(server, SoloRanks(), server.config) as step:
        for index, values in enumerate(([0.25], [0.75])):
            union_batch, data = union_batch_of(values)
            step.run(union_batch, data, index)
            with step.evaluating(), torch.enable_grad():
                code = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
                server.model(code).sum().backward()
                torch.optim.SGD([code], lr=0.5).step()
                assert code.item() != 1.0
        step.finish()
    assert weight(server) == 0.5


class TextLoss(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> str:
        return "0.5"


class LossPerSample(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch)


class Raising(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise KeyError("u")


class Detached(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx).detach()


class NoOptimizer(Scale):
    def prepare_training_attributes(self) -> Any:
        return nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (TextLoss, r"TextLoss\.training_step must return the mean loss of its batch, .* not '0\.5'"),
        (LossPerSample, r"not a tensor of shape \(2, 1\)"),
        (Raising, r"Raising\.training_step raised KeyError: 'u'"),
        (Detached, r"the backward pass of Detached\.training_step raised RuntimeError"),
        (NoOptimizer, r"NoOptimizer\.prepare_training_attributes must return model, optimizer"),
    ],
)
def test_mistakes_name_the_method(server: type[TorchServer], said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        train(server(settings()), [[0.5, 0.5]])


class Frozen(Scale):
    """Keeps one part of its model in evaluation mode."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Dropout(), nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
        return model, torch.optim.SGD(model.parameters(), lr=1.0)


def test_what_ranks_compare_are_the_weights_and_what_the_server_calls_replicated() -> None:
    class Counting(Scale):
        def replicated_state(self) -> dict[str, Any]:
            return {"count": np.ones(2)}

    server = Counting(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        before = step.fingerprints()
        torch.nn.init.zeros_(server.model.weight)
        after = step.fingerprints()
    assert before.keys() == {"weight", "count"}
    assert after["weight"] != before["weight"]
    assert after["count"] == before["count"]


@pytest.mark.parametrize("name", ["model", "optimizer", "lr_scheduler", "device"])
def test_what_is_trained_cannot_be_replaced_on_the_way(name: str) -> None:
    class Returning(Scale):
        def prepare_training_attributes(self) -> Any:
            self.model, self.optimizer = super().prepare_training_attributes()
            return self.model, self.optimizer

    server = Returning(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        with pytest.raises(UserCodeError, match=rf"^self\.{name} must not be assigned in Returning, "):
            setattr(server, name, nn.Linear(1, 1))
        trained = server.model
        with step.evaluating():
            pass
        assert server.model is trained


def test_evaluating_leaves_every_module_in_its_mode() -> None:
    server = Frozen(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        with step.evaluating():
            assert not any(module.training for module in server.model.modules())
            assert not torch.is_grad_enabled()
        assert [part.training for part in server.model] == [True, True, False]


def test_evaluating_takes_no_random_numbers_from_the_training() -> None:
    """Otherwise another validation.every_batches would change the noise, and with it the weights."""
    server = Scale(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        expected = step.random_state()
        with step.evaluating():
            # A DataLoader draws a seed even where it shuffles nothing.
            list(DataLoader(torch.zeros(2)))
            torch.rand(3)
        assert to_bytes(step.random_state()) == to_bytes(expected)


@pytest.mark.parametrize(
    ("precision", "weights", "data"),
    [
        ("32-true", torch.float32, torch.float32),
        ("64-true", torch.float64, torch.float64),
        ("bf16-mixed", torch.float32, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
    ],
)
def test_each_precision_sets_the_dtype_of_weights_and_data(
    precision: str, weights: torch.dtype, data: torch.dtype
) -> None:
    server = Scale(settings(precision=precision))
    stacked = server.collate([(np.ones(1), 3), (np.ones(1), 4)])
    assert (stacked[0].dtype, stacked[1].dtype) == (data, torch.int64)
    with TorchStep(server, SoloRanks(), server.config) as step:
        union_batch = UnionBatch(own=batch_of(stacked[0], 2), sizes=(2,), counts=StepCounts(num_first=2))
        assert step.run(union_batch, stacked[0], 0) == StepOutcome(loss=1.0)
        assert server.model.weight.dtype == weights


def test_mixed_precision_rounds_no_target() -> None:
    """1013.25 is 1012 in bfloat16, and so is every pressure near it."""
    server = Scale(settings(precision="bf16-mixed"))
    with TorchStep(server, SoloRanks(), server.config) as step:
        inputs, targets = step.to_device((torch.ones(2, 1), torch.tensor([1013.25, 1012.5])))
        assert (inputs.dtype, targets.tolist()) == (torch.float32, [1013.25, 1012.5])


def test_collate_makes_tensors_of_arrays_numbers_and_tensors() -> None:
    samples = [
        {"x": np.float64(1), "y": torch.ones(2), "z": [True]},
        {"x": np.float64(2), "y": torch.ones(2), "z": [False]},
    ]
    stacked = TorchCollate()(samples)
    assert stacked["x"].tolist() == [1, 2]
    assert stacked["x"].dtype == torch.float32
    assert stacked["y"].shape == (2, 2)
    assert stacked["z"][0].tolist() == [True, False]


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", torch.complex64), ("64-true", torch.complex128)])
def test_complex_arrays_have_the_precision_of_the_model(precision: str, dtype: torch.dtype) -> None:
    collate, wave = TorchCollate(precision), np.array([1 + 2j, 3])
    for made in (collate.convert(wave), collate.convert(torch.as_tensor(wave)), collate([wave, wave])[0]):
        assert made.dtype == dtype
        assert made.tolist() == [1 + 2j, 3]


def test_read_only_results_of_process_batch_are_copied() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    assert TorchCollate().convert((array, "kept"))[0].tolist() == [1, 1, 1]


def test_torch_gets_its_share_of_the_cores_and_the_simulations_do_not_inherit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    before, environment = torch.get_num_threads(), dict(os.environ)
    try:
        limit_threads(3)
        assert torch.get_num_threads() == 3
        assert dict(os.environ) == environment
    finally:
        torch.set_num_threads(before)


def test_omp_num_threads_of_the_user_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    limit_threads(before + 2)
    assert torch.get_num_threads() == before


def test_a_torch_server_is_plain_to_construct_and_to_call() -> None:
    server = Scale()
    server.model, server.optimizer = server.prepare_training_attributes()
    loss = server.training_step(torch.tensor([[2.0]]), 0)
    server.manual_backward(loss)
    assert server.model.weight.grad.item() == 2.0
    assert server.device == torch.device("cpu")


class Operator(Scale):
    """Forecasts a field by a layer with dropout."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        return batch.fields["u"][:, 0], batch.fields["u"][:, 1]


def test_a_rollout_changes_neither_the_mode_of_the_model_nor_gradients_nor_random_numbers() -> None:
    config = settings()
    rollout = RolloutSettings(fields=("u",), input_steps=1)
    config.validation, config.window = SimpleNamespace(rollout=rollout), SimpleNamespace(length=2)
    server, store = Operator(config), ValidationStore(1)
    u = np.random.default_rng(0).normal(size=(6, 4))
    for step, of_step in enumerate(u):
        store.add(0, step, {"u": of_step}, {"u": True})
    store.complete(0)
    shape = WindowShape(length=2)
    held_out = HeldOutSamples(store=store, parameters_of=lambda simulation: np.zeros(1), window_shape=shape)
    with TorchStep(server, SoloRanks(), config) as step_of_model:
        server.model(torch.tensor(u)).sum().backward()
        gradients = [it.grad.clone() for it in server.model.parameters()]
        random = torch.random.get_rng_state()
        found = Rollouts(
            server, SoloRanks(), step_of_model, settings=rollout, shape=shape, held_out=held_out, batch_size=1
        ).run(lambda: False)
        assert server.model.training
        assert torch.is_grad_enabled()
        assert torch.equal(torch.random.get_rng_state(), random)
        for it, gradient in zip(server.model.parameters(), gradients, strict=True):
            assert torch.equal(it.grad, gradient)
        forecast = torch.tensor(u[0])
        expected = []
        with torch.no_grad():
            for truth in u[1:]:
                forecast = server.model[0](forecast)
                expected.append(float(np.mean((forecast.numpy() - truth) ** 2)))
    assert found is not None
    assert found.mse["u"] == pytest.approx(expected)


class Telling(nn.Module):
    """A weight that tells its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Any) -> Any:
        scaled = self.weight * inputs
        if self.training:
            stream_server.log("inputs", scaled.mean(), reduce="sum")
        return 2 * scaled


class Told(TorchServer):
    def prepare_training_attributes(self) -> Any:
        model = Telling()
        return model, torch.optim.SGD(model.parameters(), lr=0.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch).mean()


# Of torch's own, wherever its graph is cut in two.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_logs_by_the_server_that_runs_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counters.clear()
    # g++ takes a minute, and is no part of ours.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    server = Told(settings(compile=True))
    monkeypatch.setattr("stream_server.server.user.stream_server.RUNNING", [server])
    values = [[float(number), number + 2.0] for number in range(30)]
    found = train(server, values)
    server._metrics.write(30, 1.0)
    assert server._metrics.latest == {"inputs": pytest.approx(sum(range(1, 31)))}
    assert [it.loss for it in found if it is not None] == pytest.approx([2.0 * number for number in range(1, 31)])
    assert 0 < counters["stats"]["unique_graphs"] <= 3, counters
