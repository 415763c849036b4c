"""The training loop on one rank and on several."""

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import RanksDiverged, UserCodeError
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import StepOutcome, UnionBatch
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.control_round import NoSaves
from stream_server.server.training.fingerprint import Fingerprints
from stream_server.server.training.loop import Training, TrainingLimits
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.settings import settings
from tests.support.streams import ScriptedStream, batch_of


class Counting(StreamServer):
    """Its loss is the number in the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> float:
        return float(batch)


class Diary(Callback):
    """Writes down the events of one rank."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.num_steps = 0

    def on_train_start(self, server: Any) -> None:
        self.events.append("start")

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: Any) -> None:
        self.events.append((batch_idx, loss))

    def on_step_end(self, server: Any) -> None:
        self.num_steps += 1

    def on_train_end(self, server: Any) -> None:
        self.events.append("end")


class Accumulating(PlainStep):
    """Makes an update of two batches."""

    num = 0

    @property
    def at_boundary(self) -> bool:  # type: ignore[override]
        return self.num % 2 == 0

    def run(self, union_batch: UnionBatch, data: Any, batch_idx: int) -> StepOutcome:
        self.num += 1
        return StepOutcome(loss=float(data), updated=self.at_boundary, gradient_norm=1.0 if self.at_boundary else None)

    def finish(self) -> StepOutcome | None:
        return None if self.at_boundary else StepOutcome(gradient_norm=3.0)


class Drifted(PlainStep):
    """Has other weights on each rank."""

    def fingerprints(self) -> Fingerprints:
        return {"weights": self._ranks.rank}


class Learner(PlainStep):
    """Has one weight, which is `value`."""

    value = 1

    def learned(self) -> Fingerprints:
        return {"weight": self.value, "to be made": None}


class EachRound(Callback):
    """Does something at the start, and before each round."""

    def __init__(self, start: Callable[[], None], do: Callable[[], None]) -> None:
        self.start, self.do = start, do

    def on_train_start(self, server: Any) -> None:
        self.start()

    def on_round(self, server: Any) -> None:
        self.do()


Run = SimpleNamespace


def training(
    ranks: ThreadRanks,
    losses: list[int],
    *,
    step: Callable[[StreamServer, ThreadRanks], PlainStep] = PlainStep,
    each_round: Callable[[Any], None] = lambda run: None,
    leave_at_s: float = math.inf,
    length: TrainingLength | None = None,
    num_missing: int = 0,
    batches_before: int = 0,
    at_start: Callable[[Any], None] = lambda run: None,
    needs_every_batch: bool = False,
    **keys: Any,
) -> Run:
    """Train one rank on batches of one sample; gives its parts afterwards."""
    config = settings(**keys)
    server = Counting(config)
    server.union_mean = UnionMean(ranks)
    progress = Progress(ranks.size, length=length)
    progress.batches = batches_before
    run = Run(ranks=ranks, stops=StopRequests(), progress=progress, diary=Diary(), metrics=Metrics(ranks), seen=[])
    limits = TrainingLimits(config.training, run.progress, run.stops, leave_at_s=leave_at_s)
    run.step = step(server, ranks)
    callbacks = Callbacks(server, [run.diary, EachRound(lambda: at_start(run), lambda: each_round(run))])
    callbacks.surround(before=[limits])
    Training(
        ranks=ranks,
        stream=ScriptedStream([batch_of(loss, 1) for loss in losses]),
        step=run.step,
        stops=run.stops,
        limits=limits,
        progress=run.progress,
        callbacks=callbacks,
        metrics=run.metrics,
        phases=Phases(),
        saves=NoSaves(),
        normalization=Normalization(SoloRanks()),
        needs_every_batch=needs_every_batch,
        num_missing=lambda: num_missing if ranks.rank == 0 else 99,
        note_batch=run.seen.append,
    ).run()
    return run


def test_every_batch_is_trained_and_counted_on_all_ranks_alike() -> None:
    losses = [[1, 2], [3, 4, 5, 6]]
    first, second = on_ranks(2, lambda ranks: training(ranks, losses[ranks.rank]))
    assert first.diary.events == ["start", (0, 1.0), (1, 2.0), "end"]
    assert second.diary.events == ["start", (0, 3.0), (1, 4.0), (2, 5.0), (3, 6.0), "end"]
    assert [[batch.data for batch in run.seen] for run in (first, second)] == losses
    for run in (first, second):
        progress = run.progress
        assert (progress.batches, progress.updates, progress.samples, progress.draws) == (4, 4, 6, 6)
        assert progress.batches_per_rank == [2, 4]


def test_the_end_of_a_step_is_told_on_all_ranks_also_without_a_batch() -> None:
    losses = [[1, 2], [3, 4, 5, 6]]
    runs = on_ranks(2, lambda ranks: training(ranks, losses[ranks.rank]))
    assert [run.diary.num_steps for run in runs] == [4, 4]


LONG = TrainingLength(samples=100, draws=100, batches=50)


def test_a_run_is_whole_when_all_is_trained_although_less_came_than_was_expected() -> None:
    for run in on_ranks(2, lambda ranks: training(ranks, [1, 2], length=LONG)):
        assert (run.progress.fraction, run.progress.lr_steps) == (1.0, 50)


def test_so_is_one_that_ends_with_the_first_rank_that_has_no_more_data() -> None:
    for run in on_ranks(2, lambda ranks: training(ranks, [1] * (1 + ranks.rank), length=LONG, needs_every_batch=True)):
        assert run.stops.agreed is StopReason.UNEVEN
        assert (run.progress.fraction, run.progress.lr_steps) == (1.0, 50)


def test_a_run_that_is_stopped_early_is_not_whole() -> None:
    def stop(run: Any) -> None:
        run.stops.request(StopReason.EARLY_STOP, "good enough")

    [run] = on_ranks(1, lambda ranks: training(ranks, [1, 2], length=LONG, each_round=stop))
    assert (run.progress.fraction, run.progress.lr_steps) == (0.0, 0)


def test_what_rank_0_knows_to_be_missing_shortens_the_run_on_all_ranks() -> None:
    def leave(run: Any) -> None:
        if run.progress.batches == 2:
            run.stops.request(StopReason.SAVED, "a signal")

    for run in on_ranks(2, lambda ranks: training(ranks, [1, 2, 3], length=LONG, each_round=leave, num_missing=92)):
        assert (run.progress.fraction, run.progress.lr_steps) == (0.5, 25)


def test_metrics_hold_the_loss_of_training() -> None:
    def train(ranks: ThreadRanks) -> dict[str, float]:
        run = training(ranks, [2 * ranks.rank, 4])
        run.metrics.write(2, 1.0)
        return dict(run.metrics.latest)

    assert on_ranks(2, train) == [{"train/loss": 2.5}, {}]


def test_the_norm_of_the_gradient_is_one_that_the_study_logs() -> None:
    [run] = on_ranks(1, lambda ranks: training(ranks, [1, 2, 3], step=Accumulating))
    for name in ("train/loss", "grad/norm"):
        with pytest.raises(UserCodeError, match=f"would be mixed with {name}, which the study logs by itself"):
            run.metrics.log(name, 100.0, by_user=True)
    run.metrics.write(3, 1.0)
    assert run.metrics.latest == {"train/loss": 2.0, "grad/norm": 2.0}


def test_ranks_with_different_weights_end_before_the_model_is_validated_and_exported() -> None:
    def train(ranks: ThreadRanks) -> list[Any]:
        events: list[Any] = []
        with pytest.raises(RanksDiverged, match="weights is not the same on rank 1 as on rank 0"):
            training(ranks, [1, 2], step=Drifted, each_round=lambda run: events.append(run.diary.events))
        return list(events[0])

    assert on_ranks(2, train) == [["start", (0, 1.0), (1, 2.0)]] * 2


def test_max_batches_ends_the_training_exactly() -> None:
    first, second = on_ranks(2, lambda ranks: training(ranks, [1] * 5, max_batches=3))
    assert first.progress.batches == second.progress.batches == 3
    assert first.stops.agreed is StopReason.MAX_BATCHES
    assert first.stops.text == "3 batches, as training.max_batches says"


def test_max_s_ends_the_training() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, max_s=1e-9))
    assert (run.progress.batches, run.stops.agreed) == (0, StopReason.MAX_S)


def test_a_training_that_goes_on_later_is_left_without_its_end() -> None:
    def stop_after_one(run: Run) -> None:
        if run.progress.batches == 1:
            run.stops.request(StopReason.SAVED, "stopped by SIGTERM")

    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, each_round=stop_after_one))
    assert run.progress.batches == 1
    assert run.stops.agreed is StopReason.SAVED
    assert run.diary.events == ["start", (0, 1.0)]


def test_a_training_leaves_before_the_jobs_time_is_over() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, leave_at_s=time.monotonic()))
    assert (run.progress.batches, run.stops.agreed) == (0, StopReason.SAVED)
    assert run.stops.text == "saved before the time limit"


def test_one_rank_that_has_to_leave_takes_all_with_it() -> None:
    ends_at = [math.inf, time.monotonic()]
    runs = on_ranks(2, lambda ranks: training(ranks, [1] * 5, leave_at_s=ends_at[ranks.rank]))
    assert [run.stops.agreed for run in runs] == [StopReason.SAVED] * 2


def test_the_last_update_of_an_unfinished_accumulation_is_counted() -> None:
    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, step=Accumulating))
    assert (run.progress.batches, run.progress.updates, run.progress.samples) == (5, 3, 5)


def test_what_runs_on_another_thread_is_settled_before_the_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Finishing(PlainStep):
        def finish(self) -> StepOutcome | None:
            heard.append("finished")
            return super().finish()

    monkeypatch.setattr(ScriptedStream, "quiesce", lambda stream: heard.append("settled"))
    on_ranks(1, lambda ranks: training(ranks, [1], step=Finishing))
    assert heard == ["settled", "finished"]


def test_a_stop_waits_for_the_update() -> None:
    def stop_after_one(run: Run) -> None:
        if run.progress.batches == 1:
            run.stops.request(StopReason.EARLY_STOP, "enough")

    (run,) = on_ranks(1, lambda ranks: training(ranks, [1] * 5, step=Accumulating, each_round=stop_after_one))
    assert (run.progress.batches, run.progress.updates) == (2, 1)


def overwrite(run: Any) -> None:
    run.step.value = 2


def test_what_a_restart_has_restored_is_not_overwritten_when_the_training_starts() -> None:
    with pytest.raises(
        UserCodeError, match=r"changes what this restart has restored.*: weight\. Load .* in prepare_tra"
    ):
        training(SoloRanks(), [1], step=Learner, batches_before=3, at_start=overwrite)
    training(SoloRanks(), [1], step=Learner, batches_before=3)
    training(SoloRanks(), [1], step=Learner, at_start=overwrite)
