"""Metrics objects see every sample of a set once, whatever the ranks, and give their value once."""

import json
import subprocess
from typing import Any

import numpy as np
import pytest
from torch import nn
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection

from stream_server.errors import UserCodeError
from stream_server.server.metrics.metric_objects import MetricObjects, TrainedMetrics, find_metrics
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.torch.framework import TorchCollate
from tests.fakes.thread_ranks import on_ranks
from tests.server.metrics.logged import Kept
from tests.server.training.validation.validating import Server, at, step, validation
from tests.support.launch import mpirun

BATCHES = [np.array([1.0, 3.0]), np.array([8.0])]


class Largest:
    """The largest value of all; `ranks` brings the ranks together, as torchmetrics does by itself."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks
        self.reset()

    def reset(self) -> None:
        self.value = 0.0
        self.update_count = 0

    def update(self, values: Any) -> None:
        self.value = max(self.value, float(values.max()))
        self.update_count += 1

    def compute(self) -> Any:
        if self.ranks is None:
            return self.value
        gathered = self.ranks.gather(self.value)
        return self.ranks.broadcast(None if gathered is None else max(gathered))


class Measuring(Server):
    """Its `largest` sees every batch, its `other` none."""

    def __init__(self, loader: Any, metric: Any, ranks: Ranks | None = None) -> None:
        super().__init__(loader)
        self.largest = metric
        self.other = Largest(ranks)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.largest.update(batch)
        return batch.mean()


def test_the_value_of_a_metric_joins_the_means_under_the_name_of_the_attribute() -> None:
    server = Measuring(BATCHES, Largest())
    assert validation(server).run() == {"loss": 4.0, "largest": 8.0}


def test_a_metric_that_validation_does_not_update_is_left_alone() -> None:
    server = Measuring(BATCHES, Largest())
    server.other.update(np.array([5.0]))
    assert "other" not in validation(server).run()
    assert server.other.value == 5.0


def test_a_metric_begins_anew_in_each_validation_and_each_set() -> None:
    server = Measuring({"low": BATCHES[:1], "high": BATCHES[1:]}, Largest())
    one = validation(server)
    values = {"loss": 4.0, "low/loss": 2.0, "high/loss": 8.0, "low/largest": 3.0, "high/largest": 8.0}
    assert one.run() == one.run() == values
    assert server.largest.update_count == 0


def test_a_metric_that_is_returned_has_the_name_it_is_returned_under() -> None:
    class Returning(Measuring):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().validation_step(batch, batch_idx), "top": self.largest}

    assert validation(Returning(BATCHES, Largest())).run() == {"loss": 4.0, "top": 8.0}


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_without_a_batch_compute_with_the_others(num_ranks: int) -> None:
    def run(ranks: Ranks) -> dict[str, float]:
        return validation(Measuring(BATCHES[1:], Largest(ranks), ranks), ranks).run()

    assert on_ranks(num_ranks, run) == [{"loss": 8.0, "largest": 8.0}] * num_ranks


def test_a_metric_that_does_not_bring_the_ranks_together_is_an_error_of_the_user() -> None:
    def run(ranks: Ranks) -> str:
        with pytest.raises(UserCodeError) as caught:
            validation(Measuring(BATCHES, Largest()), ranks).run()
        return str(caught.value)

    assert all("'largest' of Measuring has another value on each rank" in text for text in on_ranks(2, run))


def test_a_metric_that_no_attribute_holds_is_an_error_of_the_user() -> None:
    class Careless(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": 0.0, "largest": Largest()}

    with pytest.raises(UserCodeError, match=r"returned or logged the metric 'largest', which is no attribute"):
        validation(Careless(BATCHES)).run()


def test_a_metric_with_the_name_of_a_mean_is_an_error_of_the_user() -> None:
    class Twice(Measuring):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().validation_step(batch, batch_idx), "largest": 1.0}

    with pytest.raises(UserCodeError, match="returned a number 'largest', and a metric has this name too"):
        validation(Twice(BATCHES, Largest())).run()


def test_a_metric_whose_value_is_no_number_is_an_error_of_the_user() -> None:
    class Vector(Largest):
        def compute(self) -> Any:
            return np.ones(2)

    with pytest.raises(UserCodeError, match=r"Measuring\.largest\.compute must give single numbers"):
        validation(Measuring(BATCHES, Vector())).run()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_metric_that_holds_updates_of_the_training_is_not_mixed_with_those_of_the_validation(num_ranks: int) -> None:
    def run(ranks: Ranks) -> str:
        server = Measuring(BATCHES, Largest(ranks), ranks)
        if ranks.rank == 0:
            server.largest.update(np.array([100.0]))
        with pytest.raises(UserCodeError) as caught:
            validation(server, ranks).run()
        return str(caught.value)

    said = "Measuring.largest holds updates of the training when validation_step updates it"
    assert all(text.startswith(said) for text in on_ranks(num_ranks, run))


def test_a_metric_of_the_training_that_was_reset_may_serve_the_validation() -> None:
    server = Measuring(BATCHES, Largest())
    server.largest.update(np.array([100.0]))
    server.largest.reset()
    assert validation(server).run() == {"loss": 4.0, "largest": 8.0}


def test_metrics_of_a_validation_that_is_left_begin_anew() -> None:
    leave = iter([False, True])
    server = Measuring(BATCHES, Largest())
    one = validation(server, progress=at(10), schedule=Schedule(every=10), must_leave=lambda: next(leave, False))
    step(one)
    assert (one.state_dict()["left"], server.largest.update_count, one.history) == (None, 0, [])
    step(one)
    assert one.best == {"batch": 10, "loss": 4.0}


def test_the_value_of_a_collection_has_the_names_in_it() -> None:
    class Collecting(Server):
        collate = TorchCollate("64-true")

        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self.errors = MetricCollection({"mean": MeanMetric(), "again": MeanMetric()})

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.errors.update(batch)
            return batch.mean()

    one = validation(Collecting(BATCHES))
    assert one.run() == one.run() == {"loss": 4.0, "errors/mean": 4.0, "errors/again": 4.0}


def test_metrics_are_found_in_modules_by_their_path_without_wrappers() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    class Holder(Server):
        def __init__(self) -> None:
            inner = nn.ModuleDict({"head": nn.ModuleDict({"error": MeanSquaredError()})})
            self.model = Wrapper(inner)
            self.again = inner["head"]["error"]  # type: ignore[index]

    assert [name for name, _ in find_metrics(Holder())] == ["head.error"]


def test_two_metrics_of_one_name_are_an_error_of_the_user() -> None:
    server = Measuring([], Largest())
    server.model = nn.ModuleDict({"largest": MeanMetric()})  # type: ignore[attr-defined]
    with pytest.raises(UserCodeError, match="two metrics 'largest'"):
        MetricObjects(server, SoloRanks())


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_metric_that_the_training_logs_is_a_number_of_each_log_point(num_ranks: int) -> None:
    def run(ranks: Ranks) -> tuple[list[Any], int]:
        server = Measuring(BATCHES, Largest(ranks), ranks)
        writer = Kept()
        metrics = Metrics(ranks, [] if ranks.rank else [writer])
        metrics.gauges.append(TrainedMetrics(server, ranks))
        if ranks.rank == 0:
            server.other.update(np.array([100.0]))
            metrics.log("other", server.other)
        metrics.write(10, 1.0)
        if ranks.rank == num_ranks - 1:
            server.other.update(np.array([7.0]))
            metrics.log("train/other", server.other)
        assert validation(server, ranks).run() == {"loss": 4.0, "largest": 8.0}
        metrics.write(20, 2.0)
        metrics.write(30, 3.0)
        return [(it.batch, it.values) for it in writer.records], server.other.update_count

    of_0, *others = on_ranks(num_ranks, run)
    assert of_0 == ([(10, {"train/other": 100.0}), (20, {"train/other": 7.0})], 0)
    assert others == [([], 0)] * (num_ranks - 1)


class Confusion(Largest):
    def compute(self) -> Any:
        return np.zeros((2, 2))


def logging_with(**named: Any) -> tuple[Measuring, Metrics, Kept]:
    server, writer = Measuring(BATCHES, Largest()), Kept()
    vars(server).update(named)
    metrics = Metrics(SoloRanks(), [writer])
    metrics.gauges.append(TrainedMetrics(server, SoloRanks()))
    return server, metrics, writer


def test_a_metric_that_is_not_logged_stays_that_of_the_user() -> None:
    server, metrics, writer = logging_with(confusion=Confusion(), acc=Largest())
    server.confusion.update(np.array([1.0]))
    server.acc.update(np.array([5.0]))
    metrics.log("train/acc", 3.0, by_user=True)
    metrics.write(10, 1.0)
    assert [it.values for it in writer.records] == [{"train/acc": 3.0}]
    assert (server.confusion.update_count, server.acc.compute()) == (1, 5.0)


def test_the_name_of_a_logged_metric_is_no_other_number() -> None:
    server, metrics, _ = logging_with()
    metrics.log("train/loss", 1.0)
    metrics.log("loss", server.largest, by_user=True)
    with pytest.raises(UserCodeError, match="would be mixed with train/loss"):
        metrics.write(10, 1.0)
    server, metrics, _ = logging_with()
    metrics.log("train/acc", 1.0, by_user=True)
    metrics.log("acc", server.largest, by_user=True)
    with pytest.raises(ValueError, match="takes the same reduce each time"):
        metrics.write(10, 1.0)
    with pytest.raises(ValueError, match="of a metrics object takes no step, reduce or keep"):
        metrics.log("acc", server.largest, keep=True)


def test_a_metric_that_a_validation_logs_is_as_one_that_it_returns() -> None:
    metrics = Metrics(SoloRanks())

    class Logging(Measuring):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            metrics.log("most", self.largest)
            return super().validation_step(batch, batch_idx)

    assert validation(Logging(BATCHES, Largest()), metrics=metrics).run() == {"loss": 4.0, "most": 8.0}


@pytest.mark.full
@pytest.mark.slow
def test_torchmetrics_give_on_two_ranks_what_they_give_on_one() -> None:
    # The second rank has no batch of the second set at all.
    sizes = json.dumps({"near": [5, 3, 4], "far": [6]})
    launch = mpirun("mpich", 2, ["-W", "error", "-m", "tests.server.metrics.metrics_on_ranks", sizes])
    ran = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    [alone], ranks = json.loads(ran.stdout)
    assert len(ranks) == 2
    names = {"loss", "near/loss", "far/loss"}
    names |= {f"{of}/{name}" for of in ("near", "far") for name in ("squared", "mean_error", "median_error")}
    assert set(alone["values"][0]) == names
    for rank in ranks:
        assert rank["training_updates"] == 1
    # The ranks saw errors of 1 and 3.
    assert ranks[0]["trained"] == {"train/training_error": pytest.approx(2.0)}
    assert ranks[1]["trained"] == {}
    for rank in ranks:
        for values in rank["values"]:
            assert values == pytest.approx(alone["values"][0], rel=1e-5)
