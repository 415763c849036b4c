"""The batches at which metrics are written."""

from typing import Any

from stream_server.config.training_sections import TrainingSettings
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import Logging, log_schedule
from tests.server.metrics.logged import Kept


class Study:
    """As much of a training as logging sees: a loss after each batch, and a callback."""

    def __init__(self, *, batches: int = 0, schedule: Schedule | None = None) -> None:
        self.writer = Kept()
        self.progress = Progress()
        self.progress.batches = batches
        self.phases = Phases()
        self.metrics = Metrics(SoloRanks(), [self.writer], progress=self.progress)
        self.metrics.gauges.append(lambda metrics: metrics.log("fill", 3))
        schedule = schedule or log_schedule(10, is_paced=False)
        self.logging = Logging(self.metrics, schedule=schedule, progress=self.progress, phases=self.phases)

    def train(self, num: int, *, batch_s: float = 0.0) -> None:
        for _ in range(num):
            self.progress.batches += 1
            self.progress.agreed_s += batch_s
            self.metrics.log("loss", self.progress.batches)
            self.logging.on_step_end(None)

    @property
    def batches(self) -> list[int]:
        return [record.batch for record in self.writer.records]


def is_paced(**keys: Any) -> bool:
    return TrainingSettings.model_validate({"batch_size": 4, **keys}).is_log_paced


def test_metrics_are_written_when_the_schedule_says_so() -> None:
    study = Study()
    study.train(25)
    assert study.batches == [10, 20]
    assert [it.values["loss"] for it in study.writer.records] == [5.5, 15.5]


def test_by_default_a_fast_training_writes_few_records_at_the_same_batches_on_all_ranks() -> None:
    of_ranks = [Study(schedule=log_schedule(None, is_paced=True)) for _ in range(2)]
    for study in of_ranks:
        study.train(100, batch_s=0.01)
        assert study.batches == [30, 60, 90]
        study.train(40, batch_s=1.0)
        assert study.batches == [30, 60, 90, 110, 120, 130, 140]


def test_a_number_in_study_json_is_exact_and_so_is_the_default_where_the_end_follows_from_the_records() -> None:
    study = Study(schedule=log_schedule(5, is_paced=False))
    study.train(20, batch_s=0.01)
    assert study.batches == [5, 10, 15, 20]
    assert is_paced()
    assert is_paced(early_stop={"monitor": "val/loss"})
    assert not is_paced(early_stop={"monitor": "train/loss"})
    assert not is_paced(log_every_batches=5)


def test_the_end_writes_what_was_logged_since() -> None:
    study = Study()
    study.train(25)
    study.logging.on_train_end(None)
    assert study.batches == [10, 20, 25]
    assert study.writer.records[-1].values == {"loss": 23.0, "fill": 3.0}


def test_an_end_at_a_log_point_writes_nothing_twice() -> None:
    study = Study()
    study.train(20)
    study.logging.on_train_end(None)
    assert study.batches == [10, 20]


def test_writing_is_a_phase_of_its_own() -> None:
    study = Study()
    study.train(9)
    assert "log" not in study.phases.seconds
    study.train(1)
    assert study.phases.seconds["log"] > 0


def test_a_continued_run_goes_on_with_its_log_points() -> None:
    before = Study()
    before.train(25)
    after = Study(batches=25)
    after.logging.load_state_dict(before.logging.state_dict())
    after.train(20)
    assert after.batches == [30, 40]
