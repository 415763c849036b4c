"""A short campaign; `make campaign NAME=network` is a long one. Its seed is in the header of the test report."""

from pathlib import Path

import pytest

from tests.faults.network import draws
from tests.faults.network.ordeal import endure
from tests.faults.network.studies import Journey, travel

NUM_ROUNDS = 12


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    return str(request.config.option.hypothesis_seed)


@pytest.mark.parametrize("number", range(NUM_ROUNDS))
def test_whatever_the_network_does_every_sample_comes_once(seed: str, number: int) -> None:
    outcome = endure(draws.ordeal(f"{seed}/{number}"))
    assert outcome.violations == (), outcome.ordeal


@pytest.mark.full
def test_a_study_ends_balanced_over_a_network_that_breaks(seed: str, tmp_path: Path) -> None:
    arrival = travel(Journey.drawn(seed), tmp_path)
    assert arrival.violations == (), arrival.journey
    assert arrival.struck.total() > 0
