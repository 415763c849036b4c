"""Scenarios: the changes to a disk until the power fails, and what must hold on it afterwards."""

from tests.disk.scenarios.best import BestModels
from tests.disk.scenarios.checkpoints import SCENARIOS as OF_CHECKPOINTS
from tests.disk.scenarios.export import Exports
from tests.disk.scenarios.journal import Journals
from tests.disk.scenarios.record import Recordings
from tests.disk.scenarios.report import Reports
from tests.disk.scenarios.scenario import Scenario
from tests.disk.scenarios.suggestions import Suggestions
from tests.disk.scenarios.windows import RECORD, Windows

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
