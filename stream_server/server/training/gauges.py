"""What is measured of the machinery whenever metrics are written."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress

WRITES_PER_HISTOGRAM = 10


class Fill(Protocol):
    """The part of the buffer that can be looked at."""

    @property
    def population(self) -> int: ...

    @property
    def num_unseen(self) -> int: ...

    def seen_counts(self) -> NDArray[np.uint32]: ...


class BufferGauge:
    """Fill of the buffer, and now and then how often each sample in it was drawn: a scan of the whole buffer."""

    def __init__(self, buffer: Fill) -> None:
        self._buffer = buffer
        self._num_writes = 0

    def __call__(self, metrics: Metrics, /) -> None:
        metrics.log("buffer/population", self._buffer.population)
        metrics.log("buffer/unseen", self._buffer.num_unseen)
        if self._num_writes % WRITES_PER_HISTOGRAM == 0:
            metrics.log_histogram("buffer/seen", self._buffer.seen_counts())
        self._num_writes += 1


class SpeedGauge:
    """Batches and samples per second of all ranks, and the share of each phase, since the last write."""

    def __init__(self, progress: Progress, phases: Phases) -> None:
        self._progress = progress
        self._phases = phases
        self._elapsed_s, self._batches, self._draws = progress.elapsed_s, progress.batches, progress.draws
        self._seconds = phases.seconds

    def __call__(self, metrics: Metrics, /) -> None:
        progress, before = self._progress, (self._elapsed_s, self._batches, self._draws, self._seconds)
        self._elapsed_s, self._batches, self._draws = progress.elapsed_s, progress.batches, progress.draws
        self._seconds = self._phases.seconds
        duration_s = self._elapsed_s - before[0]
        if duration_s <= 0:
            return
        metrics.log("speed/batches_per_s", (self._batches - before[1]) / duration_s)
        metrics.log("speed/samples_per_s", (self._draws - before[2]) / duration_s)
        for name, seconds in self._seconds.items():
            metrics.log(f"time/{name}", (seconds - before[3].get(name, 0.0)) / duration_s)
