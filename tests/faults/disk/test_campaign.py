"""A power failure at any moment breaks no promise, and a program that syncs too little would be found out."""

from pathlib import Path

import pytest

from tests.campaigns import Tally
from tests.faults.disk.campaign import CUT_AGAIN, PowerFailures, Run
from tests.faults.disk.scenarios import SCENARIOS, Scenario
from tests.faults.disk.scratch import scratch, taken
from tests.faults.disk.states import Moment

NUM_STATES = 450
MOST_STATES = 400

# A journal that was there before keeps its name, whatever is synced.
FOUND_OUT = [
    (scenario, unheard)
    for scenario in SCENARIOS
    for unheard in ("files", "folders")
    if (scenario.name, unheard) != ("a torn journal", "folders")
]


@pytest.mark.slow
def test_a_power_failure_at_any_moment_breaks_no_promise(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = int(request.config.option.hypothesis_seed)
    tally = Tally.of(PowerFailures(folder=tmp_path, states=NUM_STATES, seed=seed).run())
    assert not tally.violations, "\n".join(tally.violations)
    assert tally.cases.total() >= NUM_STATES
    assert sum(num for (_, column), num in tally.table.items() if column == CUT_AGAIN) > NUM_STATES / 10
    assert set(tally.cases) == {scenario.name for scenario in SCENARIOS}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "unheard"), FOUND_OUT, ids=lambda it: getattr(it, "name", it))
def test_a_program_that_does_not_sync_is_found_out(tmp_path: Path, scenario: Scenario, unheard: str) -> None:
    campaign = PowerFailures(folder=tmp_path, states=MOST_STATES, seed=1, scenarios=[scenario], unheard=[unheard])
    assert Tally.of(campaign.run()).violations


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_that_a_program_does_to_the_disk_goes_unnoticed(scenario: Scenario) -> None:
    with scratch() as ground:
        run = Run(scenario, ground)
        assert Moment(run.history, len(run.history.steps)).whole().tree == taken(run.folder)


def test_the_same_seed_gives_the_same_states(tmp_path: Path) -> None:
    first, second = (list(PowerFailures(folder=tmp_path, states=40, seed=7, first=3).run()) for _ in range(2))
    assert first == second
