"""What is measured at a log point."""

import numpy as np
from numpy.typing import NDArray

from stream_server.server.ranks import SoloRanks
from stream_server.server.training.gauges import WRITES_PER_HISTOGRAM, BufferGauge, SpeedGauge
from stream_server.server.training.metrics import Metrics, Record
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


class FullBuffer:
    population = 3
    num_unseen = 1

    def seen_counts(self) -> NDArray[np.uint32]:
        return np.array([0, 2, 2], np.uint32)


def test_the_fill_of_the_buffer_is_logged_and_its_seen_counts_now_and_then() -> None:
    writer = Kept()
    metrics = Metrics(SoloRanks(), [writer])
    metrics.gauges.append(BufferGauge(FullBuffer()))
    for batch in range(WRITES_PER_HISTOGRAM + 1):
        metrics.write(batch, 0.0)
    assert all(it.values == {"buffer/population": 3, "buffer/unseen": 1} for it in writer.records)
    histograms = [it.histograms["buffer/seen"] for it in writer.records if it.histograms]
    assert [(it.num, it.sum) for it in histograms] == [(3, 4.0), (3, 4.0)]


def test_speed_and_phases_are_those_since_the_last_write() -> None:
    clock = Clock()
    progress, phases = Progress(clock=clock), Phases(clock)
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(SpeedGauge(progress, phases))
    clock.now = 100.0
    metrics.write(0, 0.0)
    with phases.measure("step"):
        clock.now += 3.0
    clock.now += 1.0
    progress.batches, progress.draws = 20, 200
    metrics.write(20, 4.0)
    assert metrics.latest == {"speed/batches_per_s": 5.0, "speed/samples_per_s": 50.0, "time/step": 0.75}


def test_a_write_at_the_same_moment_measures_no_speed() -> None:
    clock = Clock()
    metrics = Metrics(SoloRanks())
    metrics.gauges.append(SpeedGauge(Progress(clock=clock), Phases(clock)))
    metrics.write(0, 0.0)
    assert metrics.latest == {}
