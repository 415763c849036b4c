"""The log points: when metrics are written."""

from pathlib import Path
from typing import Any

from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.user.callbacks import Callback


class Logging(Callback):
    """Writes the metrics whenever its schedule says so, and at the end of the training. Collective."""

    def __init__(self, metrics: Metrics, *, schedule: Schedule, progress: Progress, phases: Phases) -> None:
        self._metrics = metrics
        self._schedule = schedule
        self._progress = progress
        self._phases = phases

    def on_step_end(self, server: Any) -> None:
        if self._schedule.is_due(self._progress):
            self._write()
            self._schedule.done(self._progress)

    def on_train_end(self, server: Any) -> None:
        self._write()

    def on_checkpoint(self, server: Any, path: Path) -> None:
        self._metrics.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state["schedule"])

    def _write(self) -> None:
        with self._phases.measure("log"):
            self._metrics.write(self._progress.batches, self._progress.elapsed_s)
