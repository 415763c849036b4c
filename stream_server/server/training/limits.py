"""Where study.json ends a training."""

import math
import time
from typing import TYPE_CHECKING, Any

from stream_server.server.training.callbacks import Callback
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopReason, StopRequests

if TYPE_CHECKING:
    from stream_server.config.sections import Training


class Limits(Callback):
    """Asks for a stop after `training.max_batches`, after `training.max_s`, and before the time limit of the job.

    `leave_at_s` is that limit on the monotonic clock.
    """

    def __init__(
        self, settings: "Training", progress: Progress, stops: StopRequests, *, leave_at_s: float = math.inf
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._stops = stops
        self._leave_at_s = leave_at_s

    @property
    def has_all_batches(self) -> bool:
        """Whether no further batch may be trained."""
        limit = self._settings.max_batches
        return limit is not None and self._progress.batches >= limit

    def on_round(self, server: Any) -> None:
        settings = self._settings
        if self.has_all_batches:
            text = f"{settings.max_batches} batches, as training.max_batches says"
            self._stops.request(StopReason.MAX_BATCHES, text)
        if settings.max_s is not None and self._progress.elapsed_s >= settings.max_s:
            self._stops.request(StopReason.MAX_S, f"{settings.max_s:g} s, as training.max_s says")
        if time.monotonic() >= self._leave_at_s:
            self._stops.request(StopReason.SAVED, "saved before the time limit; run it again to go on")
