"""The measurements at a log point."""

import numpy as np
from numpy.typing import NDArray

from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import (
    BufferGauge,
    RateLimited,
    SamplesGauge,
    SpeedGauge,
)
from tests.server.metrics.logged import Kept
from tests.support.timing import Clock


class FullBuffer:
    population = 3
    num_unseen = 1

    def seen_counts(self) -> NDArray[np.uint32]:
        return np.array([0, 2, 4], np.uint32)

    def ages(self) -> NDArray[np.int64]:
        return np.array([0, 1, 5])


def test_the_fill_of_the_buffer_is_logged() -> None:
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(BufferGauge(FullBuffer()))
    metrics.write(10, 0.0)
    assert metrics.latest == {"buffer/population": 3, "buffer/unseen": 1}


def test_draws_and_ages_of_the_samples_are_logged_as_histograms_with_their_means() -> None:
    writer = Kept()
    metrics = Metrics(SoloRanks(), [writer])
    metrics.gauges.append(SamplesGauge(FullBuffer()))
    metrics.write(10, 0.0)
    histograms = writer.records[0].histograms
    assert {name: (it.num, it.sum) for name, it in histograms.items()} == {
        "buffer/seen": (3, 6.0),
        "buffer/age": (3, 6.0),
    }
    assert metrics.latest["buffer/seen/mean"] == metrics.latest["buffer/age/mean"] == 2.0
    assert metrics.latest["buffer/age/max"] == 5.0


def test_speed_and_phases_are_those_since_the_last_write() -> None:
    clock = Clock()
    progress, phases = Progress(clock=clock), Phases(clock)
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(SpeedGauge(progress, phases, clock))
    clock.now = 100.0
    metrics.write(0, 0.0)
    with phases.measure("step"):
        clock.now += 3.0
    clock.now += 1.0
    progress.batches, progress.draws = 20, 200
    metrics.write(20, 4.0)
    assert metrics.latest == {"speed/batches_per_s": 5.0, "speed/samples_per_s": 50.0, "time/step": 0.75}


def test_the_first_speed_does_not_count_the_set_up() -> None:
    clock = Clock()
    progress, phases = Progress(clock=clock), Phases(clock)
    gauge = SpeedGauge(progress, phases, clock)
    phases.add("step", 9.0)
    clock.now = 90.0
    gauge.on_train_start(None)
    clock.now += 10.0
    progress.batches = 20
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(gauge)
    metrics.write(20, 10.0)
    assert metrics.latest == {"speed/batches_per_s": 2.0, "speed/samples_per_s": 0.0, "time/step": 0.0}


def test_a_write_at_the_same_moment_measures_no_speed() -> None:
    clock = Clock()
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(SpeedGauge(Progress(clock=clock), Phases(clock), clock))
    metrics.write(0, 0.0)
    assert metrics.latest == {}


class Costly:
    """A gauge that takes `cost_s`, and remembers when it was read."""

    def __init__(self, clock: Clock, cost_s: float) -> None:
        self.read_at: list[float] = []
        self._clock = clock
        self._cost_s = cost_s

    def __call__(self, metrics: Metrics, /) -> None:
        self.read_at.append(self._clock.now)
        self._clock.now += self._cost_s


def read_every_second(cost_s: float, duration_s: float) -> list[float]:
    """The times at which a rationed gauge of this cost is read, if it is asked every second."""
    clock = Clock()
    costly = Costly(clock, cost_s)
    rationed, metrics = RateLimited(costly, clock), Metrics(SoloRanks())
    while clock.now < duration_s:
        rationed(metrics)
        clock.now += 1.0
    return costly.read_at


def test_a_rationed_gauge_is_read_first_of_all_and_then_every_few_seconds() -> None:
    assert read_every_second(0.0, 20.0) == [0.0, 5.0, 10.0, 15.0]


def test_a_rationed_gauge_takes_at_most_its_share_of_the_time() -> None:
    duration_s, cost_s = 10_000.0, 0.5
    num = len(read_every_second(cost_s, duration_s))
    assert 0.5 < num * cost_s / (RateLimited.SHARE * duration_s) <= 1.1


def test_a_rationed_gauge_is_read_ever_less_often_in_a_long_run() -> None:
    day_s = 24 * 3600.0
    assert len(read_every_second(0.0, day_s)) < 700
