"""A power failure at any moment breaks no promise, and a program that syncs too little would be found out."""

import pytest

from stream_server.server.checkpoint.generations import REASON_FILE
from tests.disk.campaign import Campaign, Counts, Run
from tests.disk.scenarios import SCENARIOS, Scenario
from tests.disk.scratch import scratch, taken
from tests.disk.states import Moment
from tests.disk.summary import told

NUM_STATES = 450
MOST_STATES = 400

# A journal that was there before keeps its name, whatever is synced.
FOUND_OUT = [
    (scenario, unheard)
    for scenario in SCENARIOS
    for unheard in ("files", "folders")
    if (scenario.name, unheard) != ("a torn journal", "folders")
]


def test_a_power_failure_at_any_moment_breaks_no_promise(request: pytest.FixtureRequest) -> None:
    seed = int(request.config.option.hypothesis_seed)
    counts = Campaign(num_states=NUM_STATES, seed=seed).run(Counts())
    assert not counts.violations, "\n".join(told(violation, seed) for violation in counts.violations)
    assert counts.num_states >= NUM_STATES
    assert counts.num_again > NUM_STATES / 10
    assert set(counts.scenarios) == {scenario.name for scenario in SCENARIOS}


@pytest.mark.parametrize(("scenario", "unheard"), FOUND_OUT, ids=lambda it: getattr(it, "name", it))
def test_a_program_that_does_not_sync_is_found_out(scenario: Scenario, unheard: str) -> None:
    counts = Campaign(num_states=MOST_STATES, seed=1, scenarios=[scenario], unheard=[unheard]).run(Counts())
    assert counts.violations


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_that_a_program_does_to_the_disk_goes_unnoticed(scenario: Scenario) -> None:
    with scratch() as ground:
        run = Run(scenario, ground)
        for reason in run.folder.rglob(REASON_FILE):
            # Nothing is promised of it, so it is written past the layer.
            reason.unlink()
        assert Moment(run.history, len(run.history.steps)).whole().tree == taken(run.folder)


def test_the_same_seed_gives_the_same_states() -> None:
    first, second = (Campaign(num_states=40, seed=7, first=3).run(Counts()) for _ in range(2))
    assert (first.scenarios, first.losses, first.num_again) == (second.scenarios, second.losses, second.num_again)
