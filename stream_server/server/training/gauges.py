"""What is measured of the machinery whenever metrics are written."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_server.server.training.callbacks import Callback
from stream_server.server.training.metrics import Gauge, Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress


class Fill(Protocol):
    """How many samples are in the buffer."""

    @property
    def population(self) -> int: ...

    @property
    def num_unseen(self) -> int: ...


class Waiting(Protocol):
    """The samples in the buffer, one by one."""

    def seen_counts(self) -> NDArray[np.uint32]: ...

    def ages(self) -> NDArray[np.int64]: ...


class BufferGauge:
    """Fill of the buffer."""

    def __init__(self, buffer: Fill) -> None:
        self._buffer = buffer

    def __call__(self, metrics: Metrics, /) -> None:
        metrics.log("buffer/population", self._buffer.population)
        metrics.log("buffer/unseen", self._buffer.num_unseen)


class SamplesGauge:
    """How often each sample in the buffer was drawn, and its age in samples that came after it: scans all of them."""

    def __init__(self, buffer: Waiting) -> None:
        self._buffer = buffer

    def __call__(self, metrics: Metrics, /) -> None:
        metrics.log_histogram("buffer/seen", self._buffer.seen_counts())
        metrics.log_histogram("buffer/age", self._buffer.ages())


class SpeedGauge(Callback):
    """Batches and samples per second of all ranks, and the share of each phase, since the last write."""

    def __init__(self, progress: Progress, phases: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._phases = phases
        self._clock = clock
        self._mark()

    def on_train_start(self, server: Any) -> None:
        """The set-up does not count."""
        self._mark()

    def __call__(self, metrics: Metrics, /) -> None:
        since_s, batches, draws, seconds = self._now_s, self._batches, self._draws, self._seconds
        self._mark()
        duration_s = self._now_s - since_s
        if duration_s <= 0:
            return
        metrics.log("speed/batches_per_s", (self._batches - batches) / duration_s)
        metrics.log("speed/samples_per_s", (self._draws - draws) / duration_s)
        for name, now_s in self._seconds.items():
            metrics.log(f"time/{name}", (now_s - seconds.get(name, 0.0)) / duration_s)

    def _mark(self) -> None:
        self._now_s, self._batches, self._draws = self._clock(), self._progress.batches, self._progress.draws
        self._seconds = self._phases.seconds


class Rationed:
    """A gauge that is costly, and is read so seldom that this does not matter.

    It takes at most `SHARE` of the time, and is read at most every `LEAST_S` seconds and a `PART` of the time that it
    is in use: its histograms of a run of days still fit on a screen.
    """

    SHARE = 0.002
    LEAST_S = 5.0
    PART = 0.01

    def __init__(self, gauge: Gauge, clock: Callable[[], float] = time.monotonic) -> None:
        self._gauge = gauge
        self._clock = clock
        self._began_s: float | None = None
        self._next_s = float("-inf")

    def __call__(self, metrics: Metrics, /) -> None:
        now_s = self._clock()
        if now_s < self._next_s:
            return
        if self._began_s is None:
            self._began_s = now_s
        self._gauge(metrics)
        cost_s = self._clock() - now_s
        self._next_s = now_s + max(cost_s / self.SHARE, self.LEAST_S, self.PART * (now_s - self._began_s))
