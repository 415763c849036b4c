"""What is done to a disk until the power fails, and what must hold on it afterwards."""

from tests.disk.scenarios.best import BestModels
from tests.disk.scenarios.export import Exports
from tests.disk.scenarios.generations import SCENARIOS as OF_GENERATIONS
from tests.disk.scenarios.journal import Journals
from tests.disk.scenarios.record import Recordings
from tests.disk.scenarios.report import Reports
from tests.disk.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *OF_GENERATIONS,
    *Journals.all(),
    *Recordings.all(),
    BestModels(),
    Exports(),
    Reports(),
)
