"""Schedulers of torch end at the rate at which they end by themselves, on whatever ranks a study is continued."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.training.torch.learning_rates import LearningRates
from tests.server.progress.runs_of_ranks import full_batches, study
from tests.support.settings import length_of
from tests.support.torch_servers import Scale

BATCH_SIZE = 2
NUM_SAMPLES = 72


class OneCycle(Scale):
    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        return model, optimizer, schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=self.expected_lr_steps)


class Cosine(Scale):
    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        cosine = schedulers.CosineAnnealingLR(optimizer, T_max=self.expected_lr_steps, eta_min=0.01)
        return model, optimizer, cosine


class Started:
    """One start of a study; `rates` are those that the updates had."""

    def __init__(self, server: Scale, num_ranks: int, saved: tuple[Any, Any, Any, Any] | None = None) -> None:
        config = study(num_samples=NUM_SAMPLES, batch_size=BATCH_SIZE)
        self.progress = server.progress = Progress(num_ranks, length=length_of(config, num_ranks))
        if saved is not None:
            self.progress.load_state_dict(saved[0])
        self.server = server
        server.model, server.optimizer, server.lr_scheduler = server.prepare_training_attributes()
        self.learning_rates: LearningRates = LearningRates(server)
        if saved is not None:
            for part, state in zip(
                (server.optimizer, server.lr_scheduler, self.learning_rates), saved[1:], strict=True
            ):
                part.load_state_dict(state)
        self.rates: list[float] = []

    @property
    def rate(self) -> float:
        value: float = self.server.optimizer.param_groups[0]["lr"]
        return value

    def train(self, union_batches: Sequence[UnionBatch]) -> None:
        """As the loop does."""
        for union_batch in union_batches:
            self.rates.append(self.rate)
            self.server.optimizer.step()
            self.progress.count_batch(union_batch)
            self.progress.count_update(StepOutcome())
            self.learning_rates.on_step_end(self.server)

    def end(self) -> None:
        self.progress.end()
        self.learning_rates.on_train_end(self.server)

    def saved(self) -> tuple[Any, Any, Any, Any]:
        server = self.server
        parts = (self.progress, server.optimizer, server.lr_scheduler, self.learning_rates)
        states = tuple(part.state_dict() for part in parts)
        return states[0], states[1], states[2], states[3]


def undisturbed(server_class: type[Scale], num_steps: int) -> list[float]:
    """The rates of a plain loop of torch."""
    server = server_class()
    server.progress = Progress(length=TrainingLength(batches=num_steps))
    _, optimizer, scheduler = server.prepare_training_attributes()
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("server_class", [OneCycle, Cosine])
@pytest.mark.parametrize("ranks", [(1,), (2,), (3,), (3, 2, 1), (3, 1), (1, 3), (2, 3, 2)], ids=str)
def test_the_last_rate_is_that_of_an_undisturbed_schedule_on_whatever_ranks(
    ranks: tuple[int, ...], server_class: type[Scale]
) -> None:
    share, saved, rates = NUM_SAMPLES // len(ranks), None, []
    for num_ranks in ranks:
        start = Started(server_class(), num_ranks, saved)
        start.train(list(full_batches(num_ranks, BATCH_SIZE, share)))
        saved = start.saved()
        rates += start.rates
    start.end()
    expected = undisturbed(server_class, NUM_SAMPLES // (ranks[0] * BATCH_SIZE))
    assert start.rate == expected[-1]
    assert start.server.lr_scheduler.last_epoch == len(expected) - 1
    assert set(rates) <= set(expected)
    places = [expected.index(rate) for rate in rates] if server_class is Cosine else []
    assert places == sorted(places)


@pytest.mark.parametrize("server_class", [OneCycle, Cosine])
@pytest.mark.parametrize("num_late", [1, 2, 5])
def test_steps_that_are_not_full_neither_overrun_a_schedule_nor_bring_it_back_up(
    num_late: int, server_class: type[Scale]
) -> None:
    """At the end one rank alone has samples, one by one."""
    start = Started(server_class(), 3)
    start.train(list(full_batches(3, BATCH_SIZE, NUM_SAMPLES - num_late)))
    start.train([UnionBatch(own=None, sizes=(1, 0, 0), counts=StepCounts(num_first=1))] * num_late)
    expected = undisturbed(server_class, NUM_SAMPLES // (3 * BATCH_SIZE))
    assert start.rate == expected[-1]
    start.end()
    assert start.rate == expected[-1]


def test_steps_that_are_left_when_less_has_come_are_made_up_at_the_end_and_the_log_shows_the_last_updates_rate() -> (
    None
):
    start = Started(Cosine(), 2)
    start.train(list(full_batches(2, BATCH_SIZE, NUM_SAMPLES // 2)))
    start.end()
    logged: dict[str, float] = {}
    metrics: Any = type("Noted", (), {"log": staticmethod(logged.__setitem__)})
    start.learning_rates(metrics)
    assert start.rate == pytest.approx(0.01)
    assert logged == {"lr": start.rates[-1]}
    assert start.rates[-1] > 0.5


def test_a_schedule_that_was_never_begun_is_not_ended() -> None:
    start = Started(Cosine(), 1)
    start.end()
    assert start.server.lr_scheduler.last_epoch == 0
    assert start.rate == 1.0


def test_the_rate_that_is_logged_is_the_present_one_when_no_scheduler_has_changed_it_since() -> None:
    start = Started(Cosine(), 1)
    for group in start.server.optimizer.param_groups:
        group["lr"] = torch.tensor(0.25)
    logged: dict[str, float] = {}
    metrics: Any = type("Noted", (), {"log": staticmethod(logged.__setitem__)})
    start.learning_rates(metrics)
    assert logged == {"lr": 0.25}
