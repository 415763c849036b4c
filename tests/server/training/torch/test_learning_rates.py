"""The steps of schedulers, on streams of known and of unknown length."""

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.training.torch.learning_rates import MANY, LearningRates
from tests.support.torch_servers import Scale

BATCH_SIZE = 4
NUM_STEPS = 8

NUM_SAMPLES = NUM_STEPS * BATCH_SIZE
KNOWN = TrainingLength(batches=NUM_STEPS, samples=NUM_SAMPLES, draws=NUM_SAMPLES, samples_per_update=BATCH_SIZE)
UNKNOWN = TrainingLength(samples=NUM_STEPS * BATCH_SIZE, samples_per_update=BATCH_SIZE)


class WarmUpAndCosine(Scale):
    """Two steps from 0.1 up to 1, then down to 0 at the end."""

    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        rise = schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=2)
        fall = schedulers.CosineAnnealingLR(optimizer, T_max=self.expected_lr_steps - 2)
        return model, optimizer, schedulers.SequentialLR(optimizer, [rise, fall], milestones=[2])


class MultiStep(Scale):
    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        return model, optimizer, schedulers.MultiStepLR(optimizer, [2, 4], gamma=0.1)


class Plateau(Scale):
    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        return model, optimizer, schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


class TwoGroups(Scale):
    def prepare_training_attributes(self) -> Any:
        model, _ = super().prepare_training_attributes()
        optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.5, 0.25)]
        return model, optimizers, [schedulers.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]


class Unscheduled(Scale):
    def __init__(self, num_optimizers: int | None = None) -> None:
        super().__init__()
        self.num_optimizers = num_optimizers

    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        several = [torch.optim.SGD(model.parameters(), lr=0.5) for _ in range(self.num_optimizers or 0)]
        return model, several or optimizer, None


def prepared(server: Scale, length: TrainingLength, clock: str) -> Scale:
    server.progress = Progress(length=length, lr_clock=clock)
    server.model, server.optimizer, server.lr_scheduler = server.prepare_training_attributes()
    return server


def step(server: Scale, rates: LearningRates, *, num_first: int, skipped: bool = False) -> None:
    """As the loop does."""
    if not skipped and not isinstance(server.optimizer, list):
        server.optimizer.step()
    union_batch = UnionBatch(own=None, sizes=(BATCH_SIZE,), counts=StepCounts(num_first=num_first))
    server.progress.count_batch(union_batch)
    server.progress.count_update(StepOutcome(skipped=skipped))
    rates.on_step_end(server)


def rate(server: Scale) -> float:
    value: float = server.optimizer.param_groups[0]["lr"]
    return value


def test_warm_up_and_cosine_reach_their_end_with_the_last_update_of_a_known_stream() -> None:
    server = prepared(WarmUpAndCosine(), KNOWN, "updates")
    rates, found = LearningRates(server), []
    for _ in range(NUM_STEPS):
        step(server, rates, num_first=0)
        found.append(rate(server))
    assert found[:2] == pytest.approx([0.55, 1.0])
    assert found[4] == pytest.approx(0.5)
    assert found[-1] == pytest.approx(0.0, abs=1e-12)


def test_and_with_the_last_sample_of_a_stream_whose_batches_nobody_knows() -> None:
    """Each sample is drawn four times: a quarter of every batch is new."""
    server = prepared(WarmUpAndCosine(), UNKNOWN, "samples")
    rates, found = LearningRates(server), []
    for _ in range(NUM_STEPS * 4):
        step(server, rates, num_first=BATCH_SIZE // 4)
        found.append(rate(server))
    assert found[3::4][:2] == pytest.approx([0.55, 1.0])
    assert found[0:3] == pytest.approx([0.1] * 3)
    assert found[-2] > 0
    assert found[-1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("clock", "num_first"), [("updates", 0), ("samples", BATCH_SIZE)])
def test_milestones_are_counted_by_either_clock(clock: str, num_first: int) -> None:
    server = prepared(MultiStep(), UNKNOWN, clock)
    rates, found = LearningRates(server), []
    for _ in range(5):
        step(server, rates, num_first=num_first)
        found.append(rate(server))
    assert found == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])


def test_many_new_samples_at_once_are_as_many_steps() -> None:
    server = prepared(MultiStep(), UNKNOWN, "samples")
    step(server, LearningRates(server), num_first=2 * BATCH_SIZE)
    assert rate(server) == pytest.approx(0.1)


def test_no_scheduler_is_stepped_before_the_first_update() -> None:
    server = prepared(MultiStep(), UNKNOWN, "samples")
    rates = LearningRates(server)
    for _ in range(2):
        step(server, rates, num_first=BATCH_SIZE, skipped=True)
    assert server.lr_scheduler.last_epoch == 0
    step(server, rates, num_first=BATCH_SIZE)
    assert server.lr_scheduler.last_epoch == 3


@pytest.mark.parametrize("clock", ["updates", "samples"])
def test_a_plateau_is_stepped_by_validations_alone(clock: str) -> None:
    server = prepared(Plateau(), UNKNOWN, clock)
    rates = LearningRates(server)
    for _ in range(3):
        step(server, rates, num_first=BATCH_SIZE)
    assert rate(server) == 1.0
    for loss, expected in [(1.0, 1.0), (0.5, 1.0), (0.5, 0.5)]:
        rates.on_validation_end(server, {"loss": loss, "other": 0.0})
        assert rate(server) == expected
        # One of some sets alone.
        rates.on_validation_end(server, {"far/loss": 9.0})
        assert rate(server) == expected


@pytest.mark.parametrize(("num_validations", "num_warnings"), [(0, 1), (1, 1), (2, 0)])
def test_a_plateau_without_a_validation_before_the_end_is_told(num_validations: int, num_warnings: int) -> None:
    server = prepared(Plateau(), UNKNOWN, "updates")
    rates = LearningRates(server)
    for _ in range(num_validations):
        rates.on_validation_end(server, {"loss": 1.0})
    rates.on_train_end(server)
    assert len(rates.warnings) == num_warnings


def test_steps_that_were_taken_are_not_taken_again_after_a_restart() -> None:
    server = prepared(MultiStep(), UNKNOWN, "updates")
    before = LearningRates(server)
    for _ in range(3):
        step(server, before, num_first=0)
    after = LearningRates(server)
    after.load_state_dict(before.state_dict())
    step(server, after, num_first=0)
    assert server.lr_scheduler.last_epoch == 4


class Noted:
    """A stand-in for the metrics that keeps the logged values by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def log(self, name: str, value: float) -> None:
        self.values[name] = value


def logged(server: Scale) -> dict[str, float]:
    noted: Any = Noted()
    LearningRates(server)(noted)
    values: dict[str, float] = noted.values
    return values


def test_one_rate_is_logged_by_its_plain_name() -> None:
    assert logged(prepared(MultiStep(), UNKNOWN, "updates")) == {"lr": 1.0}


def test_each_of_several_rates_is_logged_and_scheduled() -> None:
    server = prepared(TwoGroups(), UNKNOWN, "updates")
    assert logged(server) == {"lr/0": 0.5, "lr/1": 0.25}
    for optimizer in server.optimizer:
        optimizer.step()
    step(server, LearningRates(server), num_first=0)
    assert logged(server) == {"lr/0": 0.25, "lr/1": 0.125}


@pytest.mark.parametrize("made", [MultiStep, WarmUpAndCosine])
def test_a_scheduler_that_the_user_steps_too_is_refused_at_the_next_step(made: type[Scale]) -> None:
    server = prepared(made(), KNOWN, "updates")
    rates = LearningRates(server)
    step(server, rates, num_first=0)
    step(server, rates, num_first=0)
    server.lr_scheduler.step()
    with pytest.raises(UserCodeError, match=r"is stepped by .* too, so that it runs ahead: leave its step"):
        step(server, rates, num_first=0)


def test_a_plateau_that_the_user_steps_too_is_refused() -> None:
    server = prepared(Plateau(), UNKNOWN, "updates")
    rates = LearningRates(server)
    rates.on_validation_end(server, {"loss": 1.0})
    step(server, rates, num_first=0)
    server.lr_scheduler.step(1.0)
    with pytest.raises(
        UserCodeError, match=r"the ReduceLROnPlateau that Plateau\.prepare_training_attributes returned"
    ):
        step(server, rates, num_first=0)


def test_another_scheduler_in_its_place_or_an_earlier_state_is_no_step() -> None:
    server = prepared(MultiStep(), UNKNOWN, "updates")
    rates, state = LearningRates(server), server.lr_scheduler.state_dict()
    step(server, rates, num_first=0)
    server.lr_scheduler.load_state_dict(dict(state, last_epoch=0))
    step(server, rates, num_first=0)
    server.lr_scheduler = schedulers.StepLR(server.optimizer, 3, last_epoch=7)
    step(server, rates, num_first=0)
    assert server.lr_scheduler.last_epoch == 9


@pytest.mark.parametrize(("kept", "is_stepped", "num_warnings"), [(0, 0, 1), (1, 0, 1), (1, 1, 0), (0, 1, 0)])
def test_a_scheduler_that_was_made_and_is_not_returned_is_told_unless_the_user_steps_it(
    *, kept: bool, is_stepped: bool, num_warnings: int
) -> None:
    server = prepared(Unscheduled(), UNKNOWN, "updates")
    forgotten = schedulers.StepLR(server.optimizer, 2 if is_stepped else 100)
    if kept:
        server.scheduler = forgotten
    rates = LearningRates(server)
    rates.on_train_start(server)
    for _ in range(MANY + 2):
        step(server, rates, num_first=0)
        if is_stepped:
            forgotten.step()
    rates.on_train_end(server)
    assert len(rates.warnings) == num_warnings
    assert all("does not return it, and it has taken no step" in it for it in rates.warnings)


def test_a_study_without_any_scheduler_is_told_of_none() -> None:
    server = prepared(Unscheduled(), UNKNOWN, "updates")
    rates = LearningRates(server)
    rates.on_train_start(server)
    step(server, rates, num_first=0)
    rates.on_train_end(server)
    assert rates.warnings == []


def test_a_scheduler_that_raises_is_the_users_to_mend() -> None:
    server = prepared(MultiStep(), UNKNOWN, "updates")
    server.lr_scheduler.gamma = None
    rates = LearningRates(server)
    step(server, rates, num_first=0)
    with pytest.raises(UserCodeError, match="the lr_scheduler of MultiStep raised TypeError"):
        step(server, rates, num_first=0)


def test_a_rate_of_0_in_many_updates_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    server = prepared(WarmUpAndCosine(), KNOWN, "updates")
    rates = LearningRates(server)
    rates.on_train_start(server)
    for _ in range(NUM_STEPS):
        step(server, rates, num_first=0)
    server.optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(MANY - 1):
        step(server, rates, num_first=0)
    step(server, rates, num_first=0, skipped=True)
    assert rates.warnings == []
    step(server, rates, num_first=0)
    step(server, rates, num_first=0)
    [said] = rates.warnings
    assert said.startswith(f"the learning rate was 0 in {MANY} updates, until batch {NUM_STEPS + MANY + 1}: ")
    assert [it.message for it in caplog.records] == [said]


@pytest.mark.parametrize(("gamma", "num_warnings"), [(1e-2, 1), (0.5, 0)])
def test_a_rate_that_a_schedule_has_made_as_good_as_0_is_told(gamma: float, num_warnings: int) -> None:
    class Decaying(Scale):
        def prepare_training_attributes(self) -> Any:
            model, optimizer = super().prepare_training_attributes()
            return model, optimizer, schedulers.ExponentialLR(optimizer, gamma)

    server = prepared(Decaying(), UNKNOWN, "updates")
    rates = LearningRates(server)
    for _ in range(MANY + 5):
        step(server, rates, num_first=0)
    said = "the learning rate was below 1e-08 of the one at the start in 10 updates, until batch "
    assert [it[: len(said)] for it in rates.warnings] == [said] * num_warnings


@pytest.mark.parametrize(
    ("factor", "num_warnings"),
    [
        (lambda num: num / 1000, 1),
        (lambda num: (num + 1) / 50, 0),
        (lambda num: min(num, 1) * 1e-2, 0),
        (lambda num: min(num, 9 - num) * 1e-3, 0),
        (lambda num: 1e-3, 0),
    ],
)
def test_a_warm_up_that_is_longer_than_the_training_is_told(factor: Any, num_warnings: int) -> None:
    class Rising(Scale):
        def prepare_training_attributes(self) -> Any:
            model, optimizer = super().prepare_training_attributes()
            return model, optimizer, schedulers.LambdaLR(optimizer, factor)

    server = prepared(Rising(), UNKNOWN, "updates")
    rates = LearningRates(server)
    for _ in range(MANY + 2):
        step(server, rates, num_first=BATCH_SIZE)
    rates.on_train_end(server)
    said = "the learning rate rose until the end, and reached 0.01"
    assert [it[: len(said)] for it in rates.warnings] == [said] * num_warnings


@pytest.mark.parametrize(("num_zero", "rank", "num_warnings"), [(1, 0, 0), (2, 0, 1), (2, 1, 0)])
def test_one_of_several_rates_is_enough_and_rank_0_speaks_for_all(num_zero: int, rank: int, num_warnings: int) -> None:
    server = prepared(TwoGroups(), UNKNOWN, "updates")
    server.lr_scheduler, server.rank = None, rank
    for optimizer in server.optimizer[:num_zero]:
        optimizer.param_groups[0]["lr"] = 0.0
    rates = LearningRates(server)
    for _ in range(MANY):
        step(server, rates, num_first=0)
    assert len(rates.warnings) == num_warnings


@pytest.mark.parametrize(
    ("stepped", "num_updates", "said"),
    [
        ([0, 1], MANY, []),
        ([0], MANY, ["of 2 optimizers, 1 (counted from 0) took"]),
        ([0], MANY - 1, []),
        ([], MANY, []),
    ],
)
def test_an_optimizer_that_is_never_stepped_beside_another_is_told(
    stepped: list[int], num_updates: int, said: list[str]
) -> None:
    server = prepared(Unscheduled(2), UNKNOWN, "updates")
    rates = LearningRates(server)
    rates.on_train_start(server)
    for _ in range(num_updates):
        for place in stepped:
            server.optimizer[place].step()
        step(server, rates, num_first=0)
    rates.on_train_end(server)
    assert [text[: len(start)] for text, start in zip(rates.warnings, said, strict=True)] == said


def grown(factor: int, *, num_steps: int = NUM_STEPS) -> tuple[Scale, LearningRates]:
    """A study that was trained for so many steps, and goes on with `factor` times as many simulations."""
    server = prepared(WarmUpAndCosine(), KNOWN, "updates")
    rates = LearningRates(server)
    for _ in range(num_steps):
        server.optimizer.step()
        whole = UnionBatch(own=None, sizes=(BATCH_SIZE,), counts=StepCounts(num_first=BATCH_SIZE))
        server.progress.count_batch(whole)
        server.progress.count_update(StepOutcome())
        rates.on_step_end(server)
    num = factor * NUM_SAMPLES
    longer = TrainingLength(batches=num // BATCH_SIZE, samples=num, draws=num, samples_per_update=BATCH_SIZE)
    progress = Progress(length=longer)
    progress.load_state_dict(server.progress.state_dict())
    server.progress = progress
    again = LearningRates(server)
    again.load_state_dict(rates.state_dict())
    return server, again


def test_a_study_that_grows_after_its_schedule_has_ended_says_why_that_does_not() -> None:
    server, rates = grown(2)
    rates.on_train_start(server)
    [said] = rates.warnings
    assert said.startswith(f"the learning-rate schedule has ended: it took all of its {NUM_STEPS} steps")
    assert '"what": "model+optimizer"' in said


def test_one_that_grows_before_or_has_all_is_silent() -> None:
    for server, rates in (grown(2, num_steps=NUM_STEPS - 1), grown(1)):
        rates.on_train_start(server)
        assert rates.warnings == []


def test_a_length_that_nobody_knows_is_told_with_what_to_write() -> None:
    with pytest.raises(UserCodeError, match=r"write study\.time_steps and, if training\.lr_clock is to be \"updates\""):
        prepared(WarmUpAndCosine(), UNKNOWN, "updates")
