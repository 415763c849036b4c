"""The built-in behaviours of a training, in their order among the user's callbacks."""

from typing import TYPE_CHECKING, Any

from stream_server.server.training.callbacks import Callback, Callbacks
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.progress import Progress
from stream_server.server.training.schedules import Schedule
from stream_server.server.training.validation import Validation

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


class Logging(Callback):
    def __init__(self, metrics: Metrics, progress: Progress, schedule: Schedule) -> None:
        self.metrics, self.progress, self.schedule = metrics, progress, schedule

    def on_step_end(self, server: Any) -> None:
        if self.schedule.is_due(self.progress):
            self.schedule.done(self.progress)
            self.metrics.write(self.progress.batches, self.progress.elapsed_s)

    def on_train_end(self, server: Any) -> None:
        self.metrics.write(self.progress.batches, self.progress.elapsed_s)


def add_behaviours(
    callbacks: Callbacks,
    config: "StudyConfig",
    *,
    progress: Progress,
    metrics: Metrics,
    validation: Validation,
) -> None:
    """Add what every training does, in a study as in a trial."""
    expected = progress.expected_batches
    callbacks.prepend(validation)
    log_schedule = Schedule.of(every=config.training.log_every_batches, expected_batches=expected)
    callbacks.append(Logging(metrics, progress, log_schedule))


def validation_schedule(config: "StudyConfig", progress: Progress) -> Schedule:
    """When study.json wants a validation."""
    settings = config.validation
    return Schedule.of(
        every=settings.every_batches,
        every_s=settings.every_s,
        at=settings.at,
        expected_batches=progress.expected_batches,
    )
