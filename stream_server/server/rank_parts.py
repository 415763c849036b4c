"""What a rank has when its training is about to be set up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.server.continuation import Continuation
from stream_server.server.cores import Cores
from stream_server.server.design import ParameterDesign
from stream_server.server.output import OutputFolder
from stream_server.server.ranks import Ranks
from stream_server.server.restore import RankRestore
from stream_server.server.source import Source
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopRequests


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """What a rank has before it has a model. `study_state` and `restored` are None in a study that begins."""

    config: StudyConfig
    ranks: Ranks
    folder: OutputFolder
    continuation: Continuation
    study_state: dict[str, Any] | None
    restored: RankRestore | None
    design: ParameterDesign
    buffer: Buffer
    source: Source
    progress: Progress
    phases: Phases
    stops: StopRequests
    cores: Cores
    leave_at_s: float
    wall_s: Callable[[], float]
