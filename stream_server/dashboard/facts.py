"""The facts of one run that a page shows, as they were at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stream_server.analysis.attempts import AttemptFacts
from stream_server.analysis.reading import Line, RunFolder
from stream_server.analysis.run_state import RunState, SimulationFacts
from stream_server.analysis.validations import RecordedValidation
from stream_server.messages.operator import StudyStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """The known facts of a run at `at_s` seconds since the epoch.

    `status` is the answer of a live server, None if there was none. `ranks` has the newest log point of each rank, and
    `validation` is the record of the newest one. `problems` tell which files are damaged, and `said` what a study
    answered to the order to stop.
    """

    run: RunFolder
    at_s: float
    state: RunState
    status: StudyStatus | None = None
    records: Sequence[Line] = ()
    ranks: Mapping[int, Line] = field(default_factory=dict)
    attempts: Sequence[AttemptFacts] = ()
    simulations: Sequence[SimulationFacts] = ()
    validation: RecordedValidation | None = None
    problems: Sequence[str] = ()
    said: str = ""
