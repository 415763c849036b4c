"""A torch step that is taken back goes on bit by bit as if nothing had been."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of

NUM_STEPS = 8


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Noisy(TorchServer):
    """All that has a state of its own: running means, momentum, a schedule, and random numbers in each step."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch + 0.01 * torch.randn_like(batch)) ** 2).mean()


class Momentum(Noisy):
    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3)


class Fused(Noisy):
    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)


class Plateau(Noisy):
    def prepare_training_attributes(self) -> Any:
        model, optimizer, _ = super().prepare_training_attributes()
        return model, optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


class TwoOptimizers(Noisy):
    """Steps its optimizers itself."""

    automatic_optimization = False

    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        return model, [
            torch.optim.Adam(model[0].parameters(), lr=0.01),
            torch.optim.RMSprop(model[4].parameters(), lr=0.01, centered=True),
        ]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizer:
            optimizer.step()
            optimizer.zero_grad()
        return loss


def batch(index: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(index).normal(size=(2 + index % 3, 3)))


def train(step: TorchStep, first: int, stop: int) -> list[StepOutcome]:
    outcomes = []
    for index in range(first, stop):
        data = batch(index)
        counts = StepCounts(num_first=len(data))
        union_batch = UnionBatch(own=batch_of(data, len(data)), sizes=(len(data),), counts=counts)
        outcomes.append(step.run(union_batch, step.to_device(data), index))
        if outcomes[-1].updated:
            step_schedule(step._server)
    return outcomes


def step_schedule(server: TorchServer) -> None:
    """As LearningRates does, of which tests/server/training/torch/test_learning_rates.py says more."""
    for scheduler in as_list(server.lr_scheduler):
        scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))


def saved(step: TorchStep) -> tuple[bytes, bytes]:
    """The state of a step in a checkpoint."""
    step.synchronize()
    return to_bytes(step.state_dict()), to_bytes(step.random_state())


def fresh(make: Callable[[Any], TorchServer], **keys: Any) -> TorchStep:
    server = make(settings(**keys))
    return TorchStep(server, SoloRanks(), server.config)


def take_back(step: TorchStep, state: tuple[bytes, bytes]) -> None:
    step.load_state_dict(from_bytes(state[0]))
    # What happens until the training goes on may use random numbers too.
    torch.rand(7)
    step.load_random_state(from_bytes(state[1]))


@pytest.mark.parametrize("num", [0, 1, 2, 5])
@pytest.mark.parametrize("make", [Noisy, Momentum, Fused, Plateau, TwoOptimizers])
def test_the_next_steps_are_those_of_an_undisturbed_training(make: type[TorchServer], num: int) -> None:
    with fresh(make) as step:
        train(step, 0, num)
        state = saved(step)
        expected = train(step, num, NUM_STEPS)
        end = saved(step)
    with fresh(make) as other:
        take_back(other, state)
        assert train(other, num, NUM_STEPS) == expected
        assert saved(other) == end


@pytest.mark.parametrize("num", [0, 3, 6])
def test_so_they_are_at_each_boundary_of_an_accumulation(num: int) -> None:
    keys = {"accumulate": 3, "clip_norm": 0.5}
    with fresh(Noisy, **keys) as step:
        train(step, 0, num)
        assert step.at_boundary
        state = saved(step)
        expected = [*train(step, num, NUM_STEPS), step.finish()]
        end = saved(step)
    with fresh(Noisy, **keys) as other:
        take_back(other, state)
        assert [*train(other, num, NUM_STEPS), other.finish()] == expected
        assert saved(other) == end


def test_a_training_may_be_taken_back_again_and_again() -> None:
    with fresh(Noisy) as step:
        train(step, 0, NUM_STEPS)
        end = saved(step)
    state = None
    for index in range(NUM_STEPS):
        with fresh(Noisy) as step:
            if state is not None:
                take_back(step, state)
            train(step, index, index + 1)
            state = saved(step)
    assert state == end


def test_what_is_trained_after_the_state_was_taken_is_not_in_it() -> None:
    with fresh(Noisy) as step:
        train(step, 0, 3)
        state = step.state_dict()
        before = to_bytes(state)
        train(step, 3, 6)
        assert to_bytes(state) == before


class Permuting(nn.Linear):
    """Takes its inputs in an order that it draws, and that is in no state."""

    def __init__(self, order: list[int]) -> None:
        super().__init__(3, 1)
        self.orders = [np.array(order)]

    def forward(self, x: Any) -> Any:
        return super().forward(x[:, self.orders[0]])


class Drawing(Noisy):
    order = (2, 0, 1)

    def prepare_training_attributes(self) -> Any:
        model = Permuting(list(self.order))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_a_model_with_other_arrays_beside_its_state_is_told_of(order: tuple[int, ...]) -> None:
    with fresh(Drawing) as step:
        state, model_state = step.state_dict(), from_bytes(to_bytes(step.model_state()))
    said = "the model was trained with other values of orders.0"
    for load, its_state in (
        (TorchStep.load_state_dict, state),
        (TorchStep.load_model_state, model_state),
        (TorchStep.compare_constants, model_state),
    ):
        with fresh(type("Drawing", (Drawing,), {"order": order})) as step:
            load(step, its_state)
            assert [text[: len(said)] for text in step.warnings] == ([] if order == Drawing.order else [said])


def test_a_skipped_update_is_no_part_of_the_state() -> None:
    with fresh(Momentum) as step:
        train(step, 0, 3)
        before = step.state_dict()["optimizers"]
        data = torch.full((2, 3), float("nan"), dtype=torch.float64)
        union_batch = UnionBatch(own=batch_of(data, 2), sizes=(2,), counts=StepCounts(num_first=2))
        assert step.run(union_batch, data, 3).skipped
        assert to_bytes(step.state_dict()["optimizers"]) == to_bytes(before)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_weights_of_each_precision_come_back_bit_by_bit(precision: str) -> None:
    with fresh(Noisy, precision=precision) as step:
        dtype = next(step._server.model.parameters()).dtype
        data = batch(0).to(dtype)
        counts = StepCounts(num_first=len(data))
        union_batch = UnionBatch(own=batch_of(data, len(data)), sizes=(len(data),), counts=counts)
        step.run(union_batch, data, 0)
        state = saved(step)
    with fresh(Noisy, precision=precision) as other:
        take_back(other, state)
        assert saved(other) == state


@pytest.mark.parametrize(("before", "after"), [("32-true", "bf16-mixed"), ("bf16-mixed", "32-true")])
def test_a_training_goes_on_in_another_precision_with_the_weights_and_the_optimizer_that_it_had(
    before: str, after: str
) -> None:
    with fresh(Momentum, precision=before) as step:
        data = batch(0).float()
        union_batch = UnionBatch(own=batch_of(data, len(data)), sizes=(len(data),), counts=StepCounts())
        step.run(union_batch, data, 0)
        state = saved(step)
    with fresh(Momentum, precision=after) as other:
        take_back(other, state)
        assert saved(other) == state
        other.run(union_batch, data, 1)
        assert {parameter.dtype for parameter in other._server.model.parameters()} == {torch.float32}


def test_how_many_updates_were_skipped_in_a_row_is_not_forgotten() -> None:
    keys = {"max_nonfinite": 2}
    data = torch.full((2, 3), float("nan"), dtype=torch.float64)
    union_batch = UnionBatch(own=batch_of(data, 2), sizes=(2,), counts=StepCounts(num_first=2))
    with fresh(Momentum, **keys) as step:
        step.run(union_batch, data, 0)
        step.run(union_batch, data, 1)
        state = saved(step)
    with fresh(Momentum, **keys) as other:
        take_back(other, state)
        with pytest.raises(UserCodeError, match=r"training\.max_nonfinite is 2"):
            other.run(union_batch, data, 2)


# torch warns of its own use of what it has deprecated.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_what_was_saved_does_not_depend_on_compiling(before: bool, after: bool) -> None:
    """Nothing is compiled before the first forward pass."""
    with fresh(Noisy, compile=before) as step:
        state = saved(step)
    with fresh(Noisy, compile=after) as other:
        take_back(other, state)
        assert saved(other) == state


class Wider(Noisy):
    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Dropout(), nn.Tanh(), nn.Linear(9, 1))
        return model, *super().prepare_training_attributes()[1:]


class OneOptimizerLess(TwoOptimizers):
    def prepare_training_attributes(self) -> Any:
        model, optimizers = super().prepare_training_attributes()
        return model, optimizers[:1]


class OtherGroups(Noisy):
    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        return model, torch.optim.Adam([{"params": layer.parameters()} for layer in model])


class WithSgd(Noisy):
    """Takes the state of Adam without complaint."""

    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)


class WithoutScheduler(Noisy):
    def prepare_training_attributes(self) -> Any:
        return super().prepare_training_attributes()[:2]


class InTwoPhases(Noisy):
    second: type[Any] = torch.optim.lr_scheduler.ExponentialLR

    def prepare_training_attributes(self) -> Any:
        model, optimizer, _ = super().prepare_training_attributes()
        phases = [torch.optim.lr_scheduler.LinearLR(optimizer), self.second(optimizer, 1)]
        return model, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, phases, milestones=[3])


class InOtherPhases(InTwoPhases):
    second = torch.optim.lr_scheduler.StepLR


NO_MORE = [
    (Noisy, Wider, "size mismatch"),
    (
        TwoOptimizers,
        OneOptimizerLess,
        "Adam of 2 parameters and RMSprop of 2 parameters was saved, but there is Adam of 2",
    ),
    (Noisy, OtherGroups, r"Adam of 6 parameters was saved, but there is Adam of 2 \+ 2 \+ 0 \+ 0 \+ 2 parameters now"),
    (Noisy, WithSgd, "Adam of 6 parameters was saved, but there is SGD of 6 parameters now"),
    (Noisy, Plateau, "OneCycleLR was saved, but there is ReduceLROnPlateau now"),
    (Noisy, WithoutScheduler, "OneCycleLR was saved, but there is no lr_scheduler now"),
    (InTwoPhases, InOtherPhases, r"SequentialLR\(LinearLR, ExponentialLR\) was saved, but there is .*StepLR\) now"),
]
# Other classes begin anew, unless load.hyperparameters is saved: see test_hyperparameters.py.
REFUSED_ANYWAY = (Wider, OneOptimizerLess, OtherGroups)


@pytest.mark.parametrize(("before", "after", "told"), NO_MORE, ids=[after.__name__ for _, after, _ in NO_MORE])
def test_what_fits_no_more_is_told_as_the_users_to_mend(
    before: type[TorchServer], after: type[TorchServer], told: str
) -> None:
    with fresh(before) as step:
        train(step, 0, 1)
        state = saved(step)
    keeping = settings()
    keeping.load.hyperparameters = "saved"
    said = rf"{after.__name__}\.prepare_training_attributes makes something else than what was saved: .*{told}"
    for config in (keeping, *([settings()] if after in REFUSED_ANYWAY else [])):
        step = TorchStep(after(config), SoloRanks(), config)
        with step as other, pytest.raises(UserCodeError, match=rf"(?s){said}.*Make the same as before"):
            take_back(other, state)
