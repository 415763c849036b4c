"""What a rank has when its training is set up."""

from dataclasses import dataclass
from typing import Any

from stream_server.server.model_export import ModelExport
from stream_server.server.stream import StreamDataset
from stream_server.server.training.best_models import BestModels
from stream_server.server.training.checkpoints import Checkpoints
from stream_server.server.training.loop import Training
from stream_server.server.training.validation import Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """A training that is set up, and those of its parts of which the report speaks."""

    training: Training
    stream: StreamDataset
    validation: Validation
    checkpoints: Checkpoints
    best_models: BestModels | None
    export: ModelExport

    @property
    def best(self) -> list[dict[str, Any]]:
        """The best models that are kept, the best first. Rank 0."""
        return [] if self.best_models is None else self.best_models.best

    @property
    def warnings(self) -> list[str]:
        """What went wrong on this rank, and did not end the study."""
        return [*self.checkpoints.warnings, *self.export.warnings]
