"""The built-in behaviours of a training, in their order among the user's callbacks."""

from typing import TYPE_CHECKING

from stream_server.server.training.callbacks import Callbacks
from stream_server.server.training.log_points import Logging
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.schedules import Schedule
from stream_server.server.training.validation import Validation

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


def add_behaviours(
    callbacks: Callbacks,
    config: "StudyConfig",
    *,
    progress: Progress,
    metrics: Metrics,
    phases: Phases,
    validation: Validation,
) -> None:
    """Add what every training does, in a study as in a trial."""
    expected = progress.expected_batches
    callbacks.prepend(validation)
    schedule = Schedule.of(every=config.training.log_every_batches, expected_batches=expected)
    callbacks.append(Logging(metrics, schedule=schedule, progress=progress, phases=phases))


def validation_schedule(config: "StudyConfig", progress: Progress) -> Schedule:
    """When study.json wants a validation."""
    settings = config.validation
    return Schedule.of(
        every=settings.every_batches,
        every_s=settings.every_s,
        at=settings.at,
        expected_batches=progress.expected_batches,
    )
