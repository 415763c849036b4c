"""The progress of the training, passed on to the answers to operators. Rank 0's main thread."""

import math
import time
from collections.abc import Callable
from typing import Any

from stream_server.buffers import Buffer
from stream_server.messages.operator import TrainingStatus
from stream_server.server.checkpoint.agreement import SaveCounts
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.progress import Progress
from stream_server.server.training.monitoring.trends import Mark, Trends
from stream_server.server.user.callbacks import Callback

INTERVAL_S = 0.25


class OperatorStatus(Callback):
    """Shows, in a round now and then, how the training is doing. It waits for nobody, and takes no lock of a turn."""

    def __init__(
        self,
        show: Callable[[TrainingStatus], None],
        *,
        progress: Progress,
        buffer: Buffer,
        metrics: Metrics,
        saves: SaveCounts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._progress = progress
        self._buffer = buffer
        self._metrics = metrics
        self._saves = saves
        self._clock = clock
        self._trends = Trends()
        self._next = -math.inf

    def on_round(self, server: Any) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        progress, latest = self._progress, self._metrics.latest
        mark = Mark(now, progress.batches, progress.samples, progress.draws)
        trend = self._trends.note(mark, fraction=progress.fraction)
        self._show(
            TrainingStatus(
                at_s=now,
                batches=progress.batches,
                samples=progress.samples,
                batches_per_s=trend.batches_per_s,
                draws_per_s=trend.draws_per_s,
                loss=_finite(latest.get("train/loss")),
                validation_loss=_finite(latest.get("val/loss")),
                population=self._buffer.population,
                capacity=self._buffer.capacity,
                fraction=progress.fraction,
                elapsed_s=progress.elapsed_s,
                left_s=trend.left_s,
                is_degraded=self._saves.degraded,
            )
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
