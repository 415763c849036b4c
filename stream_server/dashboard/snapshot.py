"""What is known of one run at one moment: what a page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stream_server.analysis.attempts import AttemptSpan
from stream_server.analysis.reading import Line
from stream_server.analysis.run_status import RunStatus
from stream_server.analysis.simulations import SimulationSummary
from stream_server.analysis.validations import RecordedValidation


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """What is known of a run at `at_s` seconds since the epoch.

    `ranks` has the newest log point of each rank, and `validation` is the record of the newest one. `problems` tell
    which files are damaged, and `said` what a study answered to the order to stop.
    """

    at_s: float
    status: RunStatus
    records: Sequence[Line] = ()
    ranks: Mapping[int, Line] = field(default_factory=dict)
    attempts: Sequence[AttemptSpan] = ()
    simulations: Sequence[SimulationSummary] = ()
    validation: RecordedValidation | None = None
    problems: Sequence[str] = ()
    said: str = ""
