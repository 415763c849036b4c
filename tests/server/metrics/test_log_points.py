"""The batches at which metrics are written."""

from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import Logging
from tests.server.metrics.logged import Kept


class Study:
    """As much of a training as logging sees: a loss after each batch, and a callback."""

    def __init__(self, *, batches: int = 0, every: int = 10) -> None:
        self.writer = Kept()
        self.progress = Progress()
        self.progress.batches = batches
        self.phases = Phases()
        self.metrics = Metrics(SoloRanks(), [self.writer], progress=self.progress)
        self.metrics.gauges.append(lambda metrics: metrics.log("fill", 3))
        self.logging = Logging(self.metrics, schedule=Schedule(every=every), progress=self.progress, phases=self.phases)

    def train(self, num: int) -> None:
        for _ in range(num):
            self.progress.batches += 1
            self.metrics.log("loss", self.progress.batches)
            self.logging.on_step_end(None)

    @property
    def batches(self) -> list[int]:
        return [record.batch for record in self.writer.records]


def test_metrics_are_written_when_the_schedule_says_so() -> None:
    study = Study()
    study.train(25)
    assert study.batches == [10, 20]
    assert [it.values["loss"] for it in study.writer.records] == [5.5, 15.5]


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
