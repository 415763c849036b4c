"""The user's newest word about hyperparameters at a restart, against loops of plain torch."""

import copy
import re
from collections.abc import Callable
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.server.training.torch.test_restart import batch, train
from tests.support.settings import settings

MakeOptimizer = Callable[[Any, float], Any]
MakeSchedule = Callable[[Any], Any]
# Steps before the restart, and in all.
CHANGED, END = 7, 16


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Quadratic(TorchServer):
    """Makes what a test says."""

    optimizers: Any = None
    schedulers: Any = None

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(3, 2)
        optimizer = type(self).optimizers(model)
        scheduler = type(self).schedulers
        return model, optimizer, None if scheduler is None else scheduler(optimizer)

    def training_step(self, data: Any, batch_idx: int) -> Any:
        return (self.model(data) ** 2).mean()


def step_of(make_optimizer: Any, make_schedule: Any = None, *, hyperparameters: str = "new", **keys: Any) -> TorchStep:
    made = {"optimizers": make_optimizer} | ({} if make_schedule is None else {"schedulers": make_schedule})
    kind = type("Quadratic", (Quadratic,), {name: staticmethod(make) for name, make in made.items()})
    config = settings(**keys)
    config.load.hyperparameters = hyperparameters
    return TorchStep(kind(config), SoloRanks(), config)


def restarted(step: TorchStep, state: bytes) -> list[str]:
    """What is said of the changes when a step takes back what another has saved."""
    step.load_state_dict(from_bytes(state))
    return [f"{change.name}: {change.before} → {change.now}; {change.note}" for change in step.changes]


def weights(step: TorchStep) -> torch.Tensor:
    return torch.cat([each.detach().ravel().clone() for each in step._server.model.parameters()])


def rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


class Loop:
    """A loop of plain torch."""

    def __init__(self, model: nn.Module, optimizer: Any, schedule: Any) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.rates: list[float] = []

    def run(self, first: int, stop: int) -> None:
        for index in range(first, stop):
            self.rates += rates(self.optimizer)
            self.optimizer.zero_grad()
            (self.model(batch(index)) ** 2).mean().backward()
            self.optimizer.step()
            if isinstance(self.schedule, schedules.ReduceLROnPlateau):
                self.schedule.step(1.0)
            elif self.schedule is not None:
                self.schedule.step()


def model_of(step: TorchStep) -> nn.Module:
    model: nn.Module = copy.deepcopy(step._server.model)
    return model


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "AdamW of two groups": lambda model, lr: torch.optim.AdamW(
        [{"params": [model.weight], "lr": lr}, {"params": [model.bias], "lr": 10 * lr, "weight_decay": 0.0}], fused=True
    ),
    "RMSprop": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr, centered=True),
}
SCHEDULES: dict[str, MakeSchedule | None] = {
    "none": None,
    "LambdaLR": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda optimizer: schedules.MultiplicativeLR(optimizer, lambda step: 0.9),
    "StepLR": lambda optimizer: schedules.StepLR(optimizer, step_size=3, gamma=0.5),
    "MultiStepLR": lambda optimizer: schedules.MultiStepLR(optimizer, [2, 9], gamma=0.5),
    "ExponentialLR": lambda optimizer: schedules.ExponentialLR(optimizer, gamma=0.9),
    "CosineAnnealingLR": lambda optimizer: schedules.CosineAnnealingLR(optimizer, T_max=20, eta_min=1e-4),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, T_0=5),
    "SequentialLR": lambda optimizer: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, total_iters=4), schedules.CosineAnnealingLR(optimizer, T_max=16)],
        milestones=[4],
    ),
    "ChainedScheduler": lambda optimizer: schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, total_iters=9), schedules.ExponentialLR(optimizer, 0.9)]
    ),
}


# torch warns of a schedule that is stepped before its optimizer, as the loop does.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_changed_rate_is_that_of_a_loop_which_changes_it_at_that_step(optimizer: str, schedule: str) -> None:
    make, make_schedule = OPTIMIZERS[optimizer], SCHEDULES[schedule]
    with step_of(lambda model: make(model, 0.01), make_schedule) as step:
        model = model_of(step)
        own = make(model, 0.01)
        loop = Loop(model, own, make_schedule and make_schedule(own))
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    loop.run(0, CHANGED)
    now = make(model, 0.003)
    now.state.update(own.state)
    loop = Loop(model, now, make_schedule and make_schedule(now))
    for _ in range(CHANGED if make_schedule else 0):
        loop.schedule.step()
    loop.run(CHANGED, END)
    with step_of(lambda model: make(model, 0.003), make_schedule) as step:
        said = restarted(step, state)
        assert said[0].startswith("learning rate: 0.01 → 0.003; optimizer state kept")
        assert ("the schedule goes on at its step 7" in said[0]) == (make_schedule is not None)
        train(step, CHANGED, END)
        torch.testing.assert_close(weights(step), nn.utils.parameters_to_vector(model.parameters()), rtol=0, atol=0)
        state = to_bytes(step.state_dict())
        expected = rates(step._server.optimizer)
    with step_of(lambda model: make(model, 0.003), make_schedule) as step:
        assert restarted(step, state) == []
        assert rates(step._server.optimizer) == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("changed", [0.01, 0.003])
def test_what_was_saved_goes_on_if_it_is_kept_or_nothing_was_changed(schedule: str, changed: float) -> None:
    make, make_schedule = OPTIMIZERS["Adam"], SCHEDULES[schedule]
    with step_of(lambda model: make(model, 0.01), make_schedule) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
        train(step, CHANGED, END)
        expected, end = weights(step), to_bytes(step.state_dict())
    hyperparameters = "new" if changed == 0.01 else "saved"
    with step_of(lambda model: make(model, changed), make_schedule, hyperparameters=hyperparameters) as step:
        assert restarted(step, state) == []
        train(step, CHANGED, END)
        assert torch.equal(weights(step), expected)
        # A later start without the option takes the changed rate.
        assert to_bytes(step.state_dict()) == end


CLOSED: list[tuple[str, MakeSchedule, MakeSchedule, Callable[[float, int], float]]] = [
    (
        "step_size: 3 → 2",
        lambda it: schedules.StepLR(it, step_size=3, gamma=0.5),
        lambda it: schedules.StepLR(it, step_size=2, gamma=0.5),
        lambda base, step: base * 0.5 ** (step // 2),
    ),
    (
        "gamma: 0.9 → 0.8",
        lambda it: schedules.ExponentialLR(it, 0.9),
        lambda it: schedules.ExponentialLR(it, 0.8),
        lambda base, step: base * 0.8**step,
    ),
    (
        "milestones",
        lambda it: schedules.MultiStepLR(it, [3, 30], gamma=0.1),
        lambda it: schedules.MultiStepLR(it, [9, 30], gamma=0.1),
        lambda base, step: base * (0.1 if step >= 9 else 1.0),
    ),
    (
        "T_max: 20 → 40",
        lambda it: schedules.CosineAnnealingLR(it, T_max=20),
        lambda it: schedules.CosineAnnealingLR(it, T_max=40),
        lambda base, step: base * (1 + cos(pi * step / 40)) / 2,
    ),
    (
        "lr_lambdas",
        lambda it: schedules.LambdaLR(it, lambda step: 0.9**step),
        lambda it: schedules.LambdaLR(it, lambda step: 1 / (1 + step)),
        lambda base, step: base / (1 + step),
    ),
    (
        r"\[1\]\.end_factor: 0.5 → 0.1",
        lambda it: schedules.SequentialLR(
            it, [schedules.ConstantLR(it, 1.0, 2), schedules.LinearLR(it, 1.0, 0.5, 10)], milestones=[2]
        ),
        lambda it: schedules.SequentialLR(
            it, [schedules.ConstantLR(it, 1.0, 2), schedules.LinearLR(it, 1.0, 0.1, 10)], milestones=[2]
        ),
        lambda base, step: base * (1.0 - 0.9 * min(max(step - 2, 0), 10) / 10),
    ),
]


@pytest.mark.parametrize(("said", "before", "after", "rate"), CLOSED, ids=[case[0] for case in CLOSED])
def test_a_changed_schedule_goes_on_at_its_place(
    said: str, before: MakeSchedule, after: MakeSchedule, rate: Callable[[float, int], float]
) -> None:
    make = OPTIMIZERS["SGD"]
    with step_of(lambda model: make(model, 0.1), before) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.1), after) as step:
        [text] = restarted(step, state)
        assert re.search(said, text)
        for index in range(CHANGED, END):
            assert rates(step._server.optimizer) == pytest.approx([rate(0.1, index)])
            train(step, index, index + 1)


def test_a_cycle_of_rate_and_momentum_goes_on_at_its_place() -> None:
    def schedule(peak: float, steps: int) -> MakeSchedule:
        return lambda it: schedules.OneCycleLR(it, peak, total_steps=steps)

    make = OPTIMIZERS["Adam"]
    with step_of(lambda model: make(model, 0.1), schedule(0.1, 20)) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    [parameter] = [torch.zeros(1, requires_grad=True)]
    own = torch.optim.Adam([parameter])
    expected = schedule(0.3, 30)(own)
    for _ in range(CHANGED):
        own.step()
        expected.step()
    with step_of(lambda model: make(model, 0.1), schedule(0.3, 30)) as step:
        said = restarted(step, state)
        assert any(text.startswith("lr_scheduler.total_steps: 20 → 30") for text in said)
        for index in range(CHANGED, END):
            assert [step._server.optimizer.param_groups[0][key] for key in ("lr", "betas")] == [
                own.param_groups[0][key] for key in ("lr", "betas")
            ]
            train(step, index, index + 1)
            own.step()
            expected.step()


def test_a_rate_that_followed_losses_keeps_its_part_of_the_base() -> None:
    def schedule(factor: float) -> MakeSchedule:
        return lambda it: schedules.ReduceLROnPlateau(it, factor=factor, patience=1)

    make = OPTIMIZERS["SGD"]
    with step_of(lambda model: make(model, 0.1), schedule(0.5)) as step:
        # The losses stay: after the first, each second one halves the rate.
        train(step, 0, CHANGED)
        assert rates(step._server.optimizer) == pytest.approx([0.1 / 8])
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.04), schedule(0.1)) as step:
        said = restarted(step, state)
        assert said == [
            "learning rate: 0.1 → 0.04; optimizer state kept",
            "lr_scheduler.factor: 0.5 → 0.1; optimizer state kept",
        ]
        assert rates(step._server.optimizer) == pytest.approx([0.04 / 8])
        train(step, CHANGED, CHANGED + 2)
        assert rates(step._server.optimizer) == pytest.approx([0.04 / 80])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"weight_decay": 0.0}, {"weight_decay": 0.1}, "optimizer.weight_decay: 0.0 → 0.1; optimizer state kept"),
        ({}, {"betas": (0.8, 0.99)}, "optimizer.betas: (0.9, 0.999) → (0.8, 0.99); optimizer state kept"),
        ({"fused": True}, {"fused": None}, "optimizer.fused: True → None; optimizer state kept"),
        ({}, {"amsgrad": True}, "optimizer.amsgrad: False → True; optimizer state begins anew"),
    ],
)
def test_other_settings_are_taken_too_and_the_rest_stays(before: Any, after: Any, said: str) -> None:
    with step_of(lambda model: torch.optim.Adam(model.parameters(), lr=0.1, **before)) as step:
        train(step, 0, CHANGED)
        # By a callback, for example: as it is made as before, it goes on.
        step._server.optimizer.param_groups[0]["lr"] = 0.05
        model, own = model_of(step), step._server.optimizer
        state = to_bytes(step.state_dict())
    now = torch.optim.Adam(model.parameters(), **{"lr": 0.05, **before, **after})
    if "anew" not in said:
        now.load_state_dict({**own.state_dict(), "param_groups": now.state_dict()["param_groups"]})
    Loop(model, now, None).run(CHANGED, END)
    with step_of(lambda model: torch.optim.Adam(model.parameters(), lr=0.1, **{**before, **after})) as step:
        assert restarted(step, state) == [said]
        train(step, CHANGED, END)
        torch.testing.assert_close(weights(step), nn.utils.parameters_to_vector(model.parameters()), rtol=0, atol=0)


def test_a_rate_that_is_a_tensor_is_compared_and_taken() -> None:
    def make(rate: float) -> Any:
        return lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(rate), foreach=False)

    with step_of(make(0.5), SCHEDULES["ExponentialLR"]) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    for rate, num_changes in ((0.5, 0), (0.25, 1)):
        with step_of(make(rate), SCHEDULES["ExponentialLR"]) as step:
            assert len(restarted(step, state)) == num_changes
            assert isinstance(step._server.optimizer.param_groups[0]["lr"], torch.Tensor)
            assert rates(step._server.optimizer) == pytest.approx([rate * 0.9**CHANGED])


def test_functions_of_the_step_may_count_their_calls_know_few_steps_or_be_methods_of_the_class() -> None:
    class Counting:
        num = 0

        def __call__(self, step: int) -> float:
            self.num += 1
            return 1.0 / self.num

    class Method(Quadratic):
        def prepare_training_attributes(self) -> Any:
            model, optimizer, _ = super().prepare_training_attributes()
            return model, optimizer, schedules.LambdaLR(optimizer, self.factor)

        def factor(self, step: int) -> float:
            return 0.9**step

    counting = Counting()
    for schedule in (counting, [1.0, 0.5].__getitem__):
        with step_of(
            lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            lambda optimizer, own=schedule: schedules.LambdaLR(optimizer, own),
        ) as step:
            assert rates(step._server.optimizer) == [0.1]
    assert counting.num == 1
    config = settings()
    kind = type("Method", (Method,), {"optimizers": staticmethod(lambda model: OPTIMIZERS["SGD"](model, 0.1))})
    with TorchStep(kind(config), SoloRanks(), config) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    with TorchStep(kind(config), SoloRanks(), config) as step:
        assert restarted(step, state) == []


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_of_another_class_begins_anew_and_its_schedule_goes_on(scheduled: bool) -> None:
    def schedule(it: Any) -> Any:
        return schedules.ExponentialLR(it, 0.9) if scheduled else None

    with step_of(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), schedule) as step:
        train(step, 0, CHANGED)
        model, state = model_of(step), to_bytes(step.state_dict())
    own = torch.optim.Adagrad(model.parameters(), lr=0.1 * (0.9**CHANGED if scheduled else 1))
    Loop(model, own, schedule(own)).run(CHANGED, END)
    with step_of(lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1), schedule) as step:
        [said] = restarted(step, state)
        assert said.startswith("optimizer: SGD of 2 parameters → Adagrad of 2 parameters; optimizer state begins anew")
        train(step, CHANGED, END)
        torch.testing.assert_close(weights(step), nn.utils.parameters_to_vector(model.parameters()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "StepLR",
            "ExponentialLR",
            "lr_scheduler: StepLR → ExponentialLR; it begins anew, at the rate of the optimizer",
        ),
        ("none", "ExponentialLR", "lr_scheduler: None → ExponentialLR; it begins anew, at the rate of the optimizer"),
        ("ExponentialLR", "none", "lr_scheduler: ExponentialLR → None; the rate is that of the optimizer"),
    ],
)
def test_another_schedule_begins_anew(before: str, after: str, said: str) -> None:
    make = OPTIMIZERS["Adam"]
    with step_of(lambda model: make(model, 0.1), SCHEDULES[before]) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.1), SCHEDULES[after]) as step:
        assert restarted(step, state) == [said]
        factor = 0.9 if after == "ExponentialLR" else 1.0
        for num in range(3):
            assert rates(step._server.optimizer) == pytest.approx([0.1 * factor**num])
            train(step, CHANGED + num, CHANGED + num + 1)
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.1), SCHEDULES[after]) as step:
        assert restarted(step, state) == []
        assert rates(step._server.optimizer) == pytest.approx([0.1 * factor**3])


def test_each_of_several_optimizers_has_its_own_word() -> None:
    def optimizers(first: float, second: float) -> Any:
        return lambda model: [
            torch.optim.SGD([model.weight], lr=first, momentum=0.9),
            torch.optim.Adam([model.bias], lr=second),
        ]

    def both(own: Any) -> Any:
        return [schedules.ExponentialLR(each, 0.9) for each in own]

    class ByHand(Quadratic):
        automatic_optimization = False

        def training_step(self, data: Any, batch_idx: int) -> Any:
            loss = super().training_step(data, batch_idx)
            self.manual_backward(loss)
            for optimizer in self.optimizer:
                optimizer.step()
                optimizer.zero_grad()
            return loss

    def stepped(first: float, second: float) -> TorchStep:
        config = settings()
        made = {"optimizers": staticmethod(optimizers(first, second)), "schedulers": staticmethod(both)}
        kind = type("ByHand", (ByHand,), made)
        return TorchStep(kind(config), SoloRanks(), config)

    with stepped(0.1, 0.01) as step:
        train(step, 0, CHANGED)
        state = to_bytes(step.state_dict())
    with stepped(0.1, 0.02) as step:
        assert restarted(step, state) == [
            "optimizer[1].lr: 0.01 → 0.02; optimizer state kept; the schedule goes on at its step 7"
        ]
        first, second = step._server.optimizer
        assert rates(first) + rates(second) == pytest.approx([0.1 * 0.9**7, 0.02 * 0.9**7])
        assert len(first.state) == len(second.state) == 1


def test_a_state_of_an_early_version_wins_and_a_difference_is_told() -> None:
    make = OPTIMIZERS["SGD"]
    with step_of(lambda model: make(model, 0.1)) as step:
        train(step, 0, CHANGED)
        of_early_version = step.state_dict()
        del of_early_version["made"]
    with step_of(lambda model: make(model, 0.2)) as step:
        assert restarted(step, to_bytes(of_early_version)) == []
        assert rates(step._server.optimizer) == [0.1]
        [warning] = step.warnings
        assert "makes the learning rates [0.2], and [0.1] go on, which were saved by a version that did not" in warning
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.3)) as step:
        assert restarted(step, state) == ["learning rate: 0.2 → 0.3; optimizer state kept"]
        assert rates(step._server.optimizer) == [0.3]


@pytest.mark.parametrize(
    ("component", "source"), [(None, "server.py"), ("torch.optim:SGD", "study.json")], ids=["class", "key"]
)
def test_a_change_names_the_file_that_says_so(component: str | None, source: str) -> None:
    make = OPTIMIZERS["SGD"]
    with step_of(lambda model: make(model, 0.1), optimizer=component) as step:
        state = to_bytes(step.state_dict())
    with step_of(lambda model: make(model, 0.2), optimizer=component) as step:
        step.load_state_dict(from_bytes(state))
        assert [str(change) for change in step.changes] == [
            f"learning rate 0.1 → 0.2, from {source}; optimizer state kept"
        ]
