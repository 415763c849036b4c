"""The user's newest word about hyperparameters at a restart, against loops of plain torch."""

import copy
import re
from collections.abc import Callable
from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from stream_server.errors import UserCodeError
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


def step_of(
    make_optimizer: Any,
    make_schedule: Any = None,
    *,
    hyperparameters: str = "new",
    kind: type[Quadratic] = Quadratic,
    **keys: Any,
) -> TorchStep:
    made = {"optimizers": make_optimizer} | ({} if make_schedule is None else {"schedulers": make_schedule})
    kind = type("Quadratic", (kind,), {name: staticmethod(make) for name, make in made.items()})
    config = settings(**keys)
    config.load.hyperparameters = hyperparameters
    return TorchStep(kind(config), SoloRanks(), config)


def restarted(step: TorchStep, state: bytes) -> list[str]:
    """The changes that are told when a step restores the state that another has saved."""
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


def sgd(rate: Any = 0.1, **keys: Any) -> Any:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate, **keys)


def saved_by(make_optimizer: Any, make_schedule: Any = None, *, kind: type[Quadratic] = Quadratic) -> bytes:
    with step_of(make_optimizer, make_schedule, kind=kind) as step:
        train(step, 0, CHANGED)
        return to_bytes(step.state_dict())


def beside_plateau(make: MakeSchedule, **keys: Any) -> MakeSchedule:
    return lambda it: [make(it), schedules.ReduceLROnPlateau(it, **{"patience": 10**6, **keys})]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            lambda it: schedules.LinearLR(it, start_factor=0.1, total_iters=20),
            lambda it: schedules.LinearLR(it, start_factor=0.1, total_iters=40),
            r"lr_scheduler\[0\]\.total_iters, 20 before and 40 now.*--keep-saved",
        ),
        (
            lambda it: schedules.LambdaLR(it, lambda step: 0.9**step),
            lambda it: schedules.LambdaLR(it, lambda step: 0.8**step),
            r"lr_scheduler\[0\]\.lr_lambdas",
        ),
        (
            lambda it: schedules.OneCycleLR(it, 0.1, total_steps=20, div_factor=10),
            lambda it: schedules.OneCycleLR(it, 0.2, total_steps=20, div_factor=20),
            r"optimizer\.max_lr, 0\.1 before and 0\.2 now",
        ),
    ],
)
def test_another_changed_schedule_beside_a_plateau_is_refused(
    before: MakeSchedule, after: MakeSchedule, said: str
) -> None:
    state = saved_by(sgd(), beside_plateau(before))
    with step_of(sgd(), beside_plateau(after)) as step, pytest.raises(UserCodeError, match=said):
        step.load_state_dict(from_bytes(state))


def test_a_schedule_beside_a_plateau_follows_a_changed_rate_and_plateaus_may_change() -> None:
    def warm_up(it: Any) -> Any:
        linear = schedules.LinearLR(it, start_factor=0.1, total_iters=20)
        return schedules.SequentialLR(it, [linear, schedules.LambdaLR(it, lambda step: 0.9**step)], milestones=[20])

    state = saved_by(sgd(), beside_plateau(warm_up, factor=0.5))
    with step_of(sgd(0.2), beside_plateau(warm_up, factor=0.1)) as step:
        said = restarted(step, state)
        assert [text.partition(":")[0] for text in said] == ["learning rate", "lr_scheduler[1].factor"]
        for index in range(CHANGED, 24):
            factor = 0.9 ** (index - 20) if index > 20 else 0.1 + 0.9 * index / 20
            assert rates(step._server.optimizer) == pytest.approx([0.2 * factor])
            train(step, index, index + 1)


def test_a_list_of_one_is_compared_with_the_one() -> None:
    class ByHand(Quadratic):
        automatic_optimization = False

        def training_step(self, data: Any, batch_idx: int) -> Any:
            loss = super().training_step(data, batch_idx)
            self.manual_backward(loss)
            return loss

    def listed(make: Any) -> Any:
        return lambda it: [make(it)]

    def of_one(make: MakeSchedule) -> MakeSchedule:
        return lambda it: make(it[0] if isinstance(it, list) else it)

    def chained(gamma: float) -> MakeSchedule:
        return of_one(lambda it: schedules.ChainedScheduler([schedules.ExponentialLR(it, gamma)]))

    def alone(make: Any) -> Any:
        return make

    for first, then in ((alone, listed), (listed, alone)):
        state = saved_by(first(sgd(0.1)), first(chained(0.9)), kind=ByHand)
        with step_of(then(sgd(0.2)), then(chained(0.8)), kind=ByHand) as step:
            said = restarted(step, state)
            part = "[0]" if then is listed else ""
            assert [text.partition(";")[0] for text in said] == [
                "optimizer[0].lr: 0.1 → 0.2" if part else "learning rate: 0.1 → 0.2",
                f"lr_scheduler{part}[0].gamma: 0.9 → 0.8",
            ]


@pytest.mark.parametrize("parts", ["one", "list"])
def test_a_state_with_the_names_of_an_earlier_version_is_compared(parts: str) -> None:
    def schedule(gamma: float) -> MakeSchedule:
        return lambda it: (
            [schedules.ExponentialLR(it, gamma)] if parts == "list" else schedules.ExponentialLR(it, gamma)
        )

    earlier = from_bytes(saved_by(sgd(), schedule(0.9)))
    alone = {"optimizer[0]": "optimizer"} | ({"lr_scheduler[0]": "lr_scheduler"} if parts == "one" else {})
    for name in list(earlier["made"]):
        part, _, key = name.partition(".")
        earlier["made"][f"{alone.get(part, part)}.{key}"] = earlier["made"].pop(name)
    earlier["made"]["optimizer.lr"] = "np.float64(0.1)"
    with step_of(sgd(), schedule(0.9)) as step:
        assert restarted(step, to_bytes(earlier)) == []
    with step_of(sgd(0.2), schedule(0.8)) as step:
        assert len(restarted(step, to_bytes(earlier))) == 2


@pytest.mark.parametrize("change", [{"weight_decay": 0.1}, {"foreach": False}])
def test_a_rate_that_a_callback_has_set_under_a_schedule_outlives_other_changes(change: dict[str, Any]) -> None:
    with step_of(sgd(), SCHEDULES["ExponentialLR"]) as step:
        train(step, 0, CHANGED)
        step._server.optimizer.param_groups[0]["lr"] /= 10
        state = to_bytes(step.state_dict())
    with step_of(sgd(**change), SCHEDULES["ExponentialLR"]) as step:
        [said] = restarted(step, state)
        assert said.endswith("optimizer state kept")
        for index in range(CHANGED, CHANGED + 2):
            assert rates(step._server.optimizer) == pytest.approx([0.01 * 0.9**index])
            train(step, index, index + 1)


def test_a_changed_setting_that_the_schedule_moves_is_taken_at_its_place() -> None:
    def cycle(peak: float, part: float) -> MakeSchedule:
        return lambda it: schedules.OneCycleLR(it, peak, total_steps=20, div_factor=part)

    state = saved_by(sgd(momentum=0.9), cycle(0.1, 10))
    own = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    expected = cycle(0.2, 20)(own)
    with step_of(sgd(momentum=0.9), cycle(0.2, 20)) as step:
        assert any(text.startswith("optimizer.max_lr: 0.1 → 0.2") for text in restarted(step, state))
        for _ in range(CHANGED):
            own.step()
            expected.step()
        assert rates(step._server.optimizer) == rates(own)


class Table(schedules.LRScheduler):
    """Reads its factors from an array, and multiplies them by those of a function."""

    def __init__(
        self, optimizer: Any, factors: Any, *, part: float = 1.0, own: Any = None, unknown: Any = None
    ) -> None:
        self._factors, self._part, self.own, self.unknown = factors, part, own, unknown
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        own = 1.0 if self.own is None else self.own(self.last_epoch)
        return [base * float(self._factors[self.last_epoch]) * self._part * own for base in self.base_lrs]

    def state_dict(self) -> Any:
        return {"last_epoch": self.last_epoch, "_last_lr": self._last_lr}


RISING, FALLING = np.linspace(0.1, 1.0, 100), np.linspace(1.0, 0.1, 100)


@pytest.mark.parametrize(
    ("before", "after", "factor", "said"),
    [
        (lambda it: Table(it, RISING), lambda it: Table(it, FALLING), FALLING, "_factors: array of shape"),
        (
            lambda it: Table(it, torch.tensor(RISING)),
            lambda it: Table(it, torch.tensor(FALLING)),
            FALLING,
            "_factors: array of shape",
        ),
        (lambda it: Table(it, RISING), lambda it: Table(it, RISING, part=0.5), 0.5 * RISING, "_part: 1.0 → 0.5"),
        (
            lambda it: Table(it, RISING, own=lambda step: 1.0),
            lambda it: Table(it, RISING, own=lambda step: 0.5),
            0.5 * RISING,
            "own: function",
        ),
    ],
)
def test_changed_settings_of_a_class_of_the_user_are_seen(
    before: MakeSchedule, after: MakeSchedule, factor: Any, said: str
) -> None:
    state = saved_by(sgd(), before)
    with step_of(sgd(), before) as step:
        assert restarted(step, state) == []
    with step_of(sgd(), after) as step:
        [text] = restarted(step, state)
        assert said in text
        assert rates(step._server.optimizer) == pytest.approx([0.1 * factor[CHANGED]])


def test_what_cannot_be_compared_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def schedule(it: Any) -> Any:
        return Table(it, RISING, unknown=object())

    state = saved_by(sgd(), schedule)
    with caplog.at_level("INFO"), step_of(sgd(), schedule) as step:
        assert restarted(step, state) == []
    assert "lr_scheduler.unknown" in caplog.text
    assert "a change of it is not seen" in caplog.text


@pytest.mark.parametrize("boundaries", [(300, 500), (1999, 2000), (40_000, 60_000)])
@pytest.mark.parametrize(
    "make",
    [
        schedules.LambdaLR,
        schedules.MultiplicativeLR,
        lambda it, own: schedules.CyclicLR(it, 0.1, 0.2, scale_fn=own, scale_mode="iterations"),
    ],
    ids=["LambdaLR", "MultiplicativeLR", "CyclicLR"],
)
def test_functions_are_compared_at_many_steps(make: Any, boundaries: tuple[int, int]) -> None:
    def schedule(boundary: int) -> MakeSchedule:
        # 0 has no value.
        return lambda it: make(it, lambda step: 1.0 / (step + 1e-9) if step == 0 else 1.0 if step < boundary else 0.1)

    first, then = boundaries
    state = saved_by(sgd(momentum=0.9), schedule(first))
    for boundary in boundaries:
        with step_of(sgd(momentum=0.9), schedule(boundary)) as step:
            assert len(restarted(step, state)) == (boundary == then)


def triangles(it: Any, own: Any) -> Any:
    return schedules.CyclicLR(it, 0.1, 0.2, scale_fn=own)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (schedules.LambdaLR, "lr_lambdas"),
        (schedules.MultiplicativeLR, "lr_lambdas"),
        (triangles, "_scale_fn_custom"),
        (lambda it, own: triangles(it, own if own(1) == 0.9 else None), "_scale_fn_custom"),
    ],
)
def test_a_changed_function_is_refused_where_what_was_saved_is_to_be_kept(make: Any, name: str) -> None:
    optimizer = sgd(momentum=0.9)
    state = saved_by(optimizer, lambda it: make(it, lambda step: 0.9))
    changed_rate = sgd(0.2, momentum=0.9)
    with step_of(changed_rate, lambda it: make(it, lambda step: 0.9), hyperparameters="saved") as step:
        assert restarted(step, state) == []
    with (
        step_of(optimizer, lambda it: make(it, lambda step: 0.8), hyperparameters="saved") as step,
        pytest.raises(UserCodeError, match=rf"lr_scheduler\.{name}.*functions are not saved.*without --keep-saved"),
    ):
        step.load_state_dict(from_bytes(state))


NUMBERS = {
    "np.float64": np.float64(0.1),
    "np.float32": np.float32(0.1),
    "torch.float32": torch.tensor(0.1),
    "torch.float64": torch.tensor(0.1, dtype=torch.float64),
    "float": 0.1,
}


@pytest.mark.parametrize("after", NUMBERS)
@pytest.mark.parametrize("before", NUMBERS)
def test_the_kind_of_a_number_is_no_change(before: str, after: str) -> None:
    def make(rate: Any, decay: Any) -> Any:
        return lambda model: torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay, foreach=False)

    state = saved_by(make(NUMBERS[before], 0))
    with step_of(make(NUMBERS[after], np.float64(0.0))) as step:
        assert restarted(step, state) == []


def test_numbers_of_numpy_are_taken_under_a_plateau() -> None:
    def schedule(it: Any) -> Any:
        return schedules.ReduceLROnPlateau(it, factor=0.5, patience=1, min_lr=[np.float64(0.0)])

    state = saved_by(sgd(np.float64(0.1)), schedule)
    with step_of(sgd(np.float64(0.4)), schedule) as step:
        assert restarted(step, state) == ["learning rate: 0.1 → 0.4; optimizer state kept"]
        assert rates(step._server.optimizer) == pytest.approx([0.4 / 8])


def test_a_class_that_cannot_take_its_own_state_is_told_in_words() -> None:
    class Broken(schedules.StepLR):
        def load_state_dict(self, state: Any) -> None:
            raise TypeError("'function' object is not iterable")

    state = saved_by(sgd(), lambda it: Broken(it, step_size=3))
    with (
        step_of(sgd(), lambda it: Broken(it, step_size=3)) as step,
        pytest.raises(UserCodeError, match="makes something else than what was saved: 'function' object"),
    ):
        step.load_state_dict(from_bytes(state))
