"""Scenarios: the changes to a disk until the power fails, and what must hold on it afterwards."""

from tests.faults.disk.scenarios.best import BestModels
from tests.faults.disk.scenarios.checkpoints import SCENARIOS as OF_CHECKPOINTS
from tests.faults.disk.scenarios.export import Exports
from tests.faults.disk.scenarios.journal import Journals
from tests.faults.disk.scenarios.record import Recordings
from tests.faults.disk.scenarios.report import Reports
from tests.faults.disk.scenarios.scenario import Scenario
from tests.faults.disk.scenarios.suggestions import Suggestions
from tests.faults.disk.scenarios.windows import RECORD, Windows

SCENARIOS: tuple[Scenario, ...] = (
    *OF_CHECKPOINTS,
    *Journals.all(),
    *Recordings.all(),
    BestModels(),
    Exports(),
    Reports(),
    Windows(),
    RECORD,
    Suggestions(),
)
