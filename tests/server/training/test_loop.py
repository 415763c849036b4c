"""The training loop on one rank and on several."""

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import Callback, Callbacks
from stream_server.server.training.lockstep import Turn
from stream_server.server.training.loop import Training
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.saves import NoSaves
from stream_server.server.training.step import LearnerStep, StepOutcome
from stream_server.server.training.stop import StopReason, StopRequests
from stream_server.server.training.union_mean import UnionMean
from tests.server.settings import settings
from tests.server.streams import ScriptedStream, batch_of
from tests.server.thread_ranks import ThreadRanks, on_ranks


class Counting(StreamServer):
    """Its loss is the number in the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> float:
        return float(batch)


class Diary(Callback):
    """Writes down the events of one rank."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_start(self, server: Any) -> None:
        self.events.append("start")

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: Any) -> None:
        self.events.append((batch_idx, loss))

    def on_train_end(self, server: Any) -> None:
        self.events.append("end")


class Checks:
    """Validation every third batch, of a model whose loss is the number of the batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.best = {"batch": 0, "loss": 0.0}

    def is_due(self, batch: int) -> bool:
        return batch % 3 == 0

    def is_done(self, batch: int) -> bool:
        return self.batches[-1:] == [batch]

    def run(self, batch: int) -> dict[str, float]:
        self.batches.append(batch)
        return {"loss": float(batch)}


class Accumulating(LearnerStep):
    """Makes an update of two batches."""

    num = 0

    @property
    def at_boundary(self) -> bool:  # type: ignore[override]
        return self.num % 2 == 0

    def run(self, turn: Turn, data: Any, batch_idx: int) -> StepOutcome:
        self.num += 1
        return StepOutcome(loss=float(data), updated=self.at_boundary)

    def finish(self) -> StepOutcome | None:
        return None if self.at_boundary else StepOutcome()


Run = SimpleNamespace


def training(
    ranks: ThreadRanks,
    losses: list[int],
    *,
    step: Callable[[StreamServer, ThreadRanks], LearnerStep] = LearnerStep,
    each_round: Callable[[Any], None] = lambda run: None,
    leave_at_s: float = math.inf,
    **keys: Any,
) -> Run:
    """Train one rank on batches of one sample; gives its parts afterwards."""
    server = Counting(settings(**keys))
    server.union_mean = UnionMean(ranks)
    diary, run = Diary(), Run(ranks=ranks, stops=StopRequests(), progress=Progress(ranks.size), checks=Checks())
    run.events = diary.events
    run.metrics = Metrics(ranks)
    Training(
        config=server.config,
        ranks=ranks,
        stream=ScriptedStream([batch_of(loss, 1) for loss in losses]),
        step=step(server, ranks),
        stops=run.stops,
        progress=run.progress,
        callbacks=Callbacks(server, [diary]),
        metrics=run.metrics,
        validation=run.checks,
        phases=Phases(),
        saves=NoSaves(),
        leave_at_s=leave_at_s,
        each_round=lambda: each_round(run),
    ).run()
    return run


def test_every_batch_is_trained_and_counted_on_all_ranks_alike() -> None:
    losses = [[1, 2], [3, 4, 5, 6]]
    first, second = on_ranks(2, lambda ranks: training(ranks, losses[ranks.rank]))
    assert first.events == ["start", (0, 1.0), (1, 2.0), "end"]
    assert second.events == ["start", (0, 3.0), (1, 4.0), (2, 5.0), (3, 6.0), "end"]
    for run in (first, second):
        progress = run.progress
        assert (progress.batches, progress.updates, progress.samples, progress.draws) == (4, 4, 6, 6)
        assert progress.batches_per_rank == [2, 4]
        assert progress.best == {"batch": 0, "loss": 0.0}


def test_validation_comes_at_its_interval_and_once_at_the_end() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1, 2, 3, 4]))
    assert run.checks.batches == [3, 4]
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1, 2, 3]))
    assert run.checks.batches == [3]


def test_metrics_hold_the_loss_of_training_and_validation() -> None:
    first, _ = on_ranks(2, lambda ranks: training(ranks, [2 * ranks.rank, 4], log_every_batches=1))
    assert first.metrics.latest == {"train/loss": 4.0, "val/loss": 2.0}


def test_max_batches_ends_the_training_exactly() -> None:
    first, second = on_ranks(2, lambda ranks: training(ranks, [1] * 5, max_batches=3))
    assert first.progress.batches == second.progress.batches == 3
    assert first.stops.agreed is StopReason.MAX_BATCHES
    assert first.stops.text == "3 batches, as training.max_batches says"


def test_max_s_ends_the_training() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, max_s=1e-9))
    assert (run.progress.batches, run.stops.agreed) == (0, StopReason.MAX_S)


def test_a_training_that_goes_on_later_is_left_without_validation_and_without_its_end() -> None:
    def stop_after_one(run: Run) -> None:
        if run.progress.batches == 1:
            run.stops.request(StopReason.SAVED, "stopped by SIGTERM")

    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, each_round=stop_after_one))
    assert (run.progress.batches, run.checks.batches) == (1, [])
    assert run.stops.agreed is StopReason.SAVED
    assert run.events == ["start", (0, 1.0)]


def test_a_training_leaves_before_the_jobs_time_is_over() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, leave_at_s=time.monotonic()))
    assert (run.progress.batches, run.stops.agreed) == (0, StopReason.SAVED)
    assert run.stops.text == "saved before the time limit; run it again to go on"


def test_one_rank_that_has_to_leave_takes_all_with_it() -> None:
    ends_at = [math.inf, time.monotonic()]
    runs = on_ranks(2, lambda ranks: training(ranks, [1] * 5, leave_at_s=ends_at[ranks.rank]))
    assert [run.stops.agreed for run in runs] == [StopReason.SAVED] * 2


def test_validation_waits_for_the_update_and_the_last_update_is_counted() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, step=Accumulating))
    assert run.checks.batches == [4, 5]
    assert (run.progress.batches, run.progress.updates, run.progress.samples) == (5, 3, 5)


def test_a_stop_waits_for_the_update() -> None:
    def stop_after_one(run: Run) -> None:
        if run.progress.batches == 1:
            run.stops.request(StopReason.EARLY_STOP, "enough")

    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, step=Accumulating, each_round=stop_after_one))
    assert (run.progress.batches, run.progress.updates) == (2, 1)


def test_progress_comes_back_as_it_was() -> None:
    now = [10.0]
    progress = Progress(2, clock=lambda: now[0])
    turn = Turn(batch=None, sizes=(0, 4), num_first=3, lonely=True)
    progress.count_turn(turn)
    progress.count_update(StepOutcome(skipped=True))
    now[0] = 15.0
    restored = Progress(2, clock=lambda: now[0])
    restored.load_state_dict(progress.state_dict())
    assert restored.state_dict() == progress.state_dict()
    assert (restored.skipped, restored.lonely_steps) == (3, 1)
    assert restored.elapsed_s == pytest.approx(5.0)
