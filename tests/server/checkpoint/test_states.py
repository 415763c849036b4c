"""The state that survives a restart: that of each part can be written and read, and gives the same part again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stream_server.config.training_sections import ValidationSettings
from stream_server.server.intake.ledger import Ledger
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.changes import Changes
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.finite_losses import FiniteLosses
from stream_server.server.training.validation.validation import Validation
from stream_server.server.user.callbacks import Callbacks
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.intakes import block, data, make, opened, opening, send
from tests.support.settings import settings
from tests.support.timing import Clock


@dataclass(frozen=True)
class Stateful:
    """How to make a part, what may happen to it, and how it is saved and taken back."""

    make: Callable[[], Any]
    happen: Callable[[Any], None]
    save: Callable[[Any], Any] = lambda part: part.state_dict()
    load: Callable[[Any, Any], None] = lambda part, state: part.load_state_dict(state)


def train(progress: Progress) -> None:
    progress.count_batch(UnionBatch(own=None, sizes=(0, 4), counts=StepCounts(num_first=3), lonely=True))
    progress.count_batch(UnionBatch(own=None, sizes=(2, 4), counts=StepCounts(num_first=6)))
    progress.count_update(StepOutcome(skipped=progress.batches > 2))
    progress.count_batch(UnionBatch(own=None, sizes=(2, 4), counts=StepCounts(num_first=1)))
    progress.best = {"batch": progress.batches, "loss": 0.5}


def settle(ledger: Ledger) -> None:
    first = 10 * ledger.duplicates
    ledger.duplicates += 1
    ledger[3].accept(range(first, first + 9, 2))
    ledger[3].reject(range(first + 1, first + 2), "nonfinite")
    ledger[4].complete, ledger[4].total = True, first


def measure(phases: Phases) -> None:
    phases.add("step", 1.5)
    phases.add("receive", 0.1)


def receive(intake: Any) -> None:
    attempt = 0 if intake.attempt(1) is None else intake.attempt(1).attempt + 1
    intake.begin_attempt(1, attempt)
    client = opened(intake, opening(block(), simulation=1, attempt=attempt))
    send(intake, client, data(client, len(intake.state.ledger[1].settled), num_steps=2))


def validate(validation: Validation) -> None:
    num = len(validation.history)
    validation.history.append({"batch": num, "loss": [float("inf"), float("nan"), 0.25][num % 3]})


def lose(losses: FiniteLosses) -> None:
    for number, loss in enumerate([0.5, float("nan"), None]):
        losses.on_batch_end(None, None, number, loss)


def log(metrics: Metrics) -> None:
    for value in (0.5, -0.25):
        metrics.log("sum", value, reduce="sum", keep=True)
        metrics.log("window", value)
    metrics.log("most", float("inf"), reduce="max", keep=True)


def change(changes: Changes) -> None:
    num = len([*changes])
    changes.note("training.batch_size", before=num or None, now=num + 1, source="study.json", note="said" * (num % 2))


def validation() -> Validation:
    return Validation(
        None,
        SoloRanks(),
        Callbacks(None),
        None,  # type: ignore[arg-type]
        held_out=lambda: None,
        settings=ValidationSettings(batch_size=1),
        progress=Progress(),
        metrics=Metrics(SoloRanks()),
    )


PARTS = {
    "ledger": Stateful(Ledger, settle),
    "intake": Stateful(make, receive),
    "changes": Stateful(Changes, change),
    "progress": Stateful(lambda: Progress(2, clock=Clock()), train),
    "phases": Stateful(Phases, measure, save=lambda phases: phases.seconds),
    "validation": Stateful(validation, validate),
    "metrics": Stateful(lambda: Metrics(SoloRanks()), log),
    "losses": Stateful(lambda: FiniteLosses(settings().training), lose),
}

# What an intake knows of its clients is not saved: they say it again.
ALONE = {name: part for name, part in PARTS.items() if name != "intake"}


@pytest.mark.parametrize("num", range(4))
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_that_was_taken_back_is_the_same(part: Stateful, num: int) -> None:
    it, other = part.make(), part.make()
    for _ in range(num):
        part.happen(it)
    state = to_bytes(part.save(it))
    part.load(other, from_bytes(state))
    assert to_bytes(part.save(other)) == state


@pytest.mark.parametrize("num", range(4))
@pytest.mark.parametrize("part", ALONE.values(), ids=ALONE)
def test_a_part_that_was_taken_back_goes_on_as_the_first_one(part: Stateful, num: int) -> None:
    it, other = part.make(), part.make()
    for _ in range(num):
        part.happen(it)
    part.load(other, from_bytes(to_bytes(part.save(it))))
    for _ in range(3):
        part.happen(it)
        part.happen(other)
        assert to_bytes(part.save(other)) == to_bytes(part.save(it))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_state_does_not_change_with_its_part(part: Stateful) -> None:
    it = part.make()
    part.happen(it)
    state = part.save(it)
    before = to_bytes(state)
    part.happen(it)
    assert to_bytes(state) == before


@pytest.mark.parametrize(("num_ranks", "batches_per_rank"), [(1, [12]), (2, [8, 4]), (3, [5, 4, 3]), (4, [5, 4, 3, 0])])
def test_the_batches_of_ranks_that_are_no_more_are_those_of_rank_0(num_ranks: int, batches_per_rank: list[int]) -> None:
    progress = Progress(3)
    progress.batches_per_rank = [5, 4, 3]
    other = Progress(num_ranks)
    other.load_state_dict(from_bytes(to_bytes(progress.state_dict())))
    assert other.batches_per_rank == batches_per_rank


def test_the_time_of_the_training_goes_on_when_the_first_batch_is_waited_for() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.begin()
    clock.now = 7.0
    state = progress.state_dict()
    clock.now = 1000.0
    other = Progress(clock=clock)
    other.load_state_dict(state)
    clock.now = 1050.0
    other.begin()
    clock.now = 1051.0
    assert other.elapsed_s == 8.0


def test_the_best_validation_of_all_incarnations_is_the_best() -> None:
    one, other = validation(), validation()
    for _ in range(3):
        validate(one)
    other.load_state_dict(from_bytes(to_bytes(one.state_dict())))
    assert other.best == {"batch": 2, "loss": 0.25}
