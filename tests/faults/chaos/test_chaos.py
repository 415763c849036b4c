"""A short campaign; `make campaign NAME=chaos` runs long ones."""

import dataclasses
from pathlib import Path

import pytest

from tests.faults.chaos.campaign import endured
from tests.faults.chaos.ordeal import Ordeal
from tests.faults.chaos.plan import Plan

NUM_KILLS = 8


def test_a_study_loses_nothing_while_its_processes_are_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Which study, and what is killed when, follows from the seed in the header of the test report."""
    seed = int(request.config.option.hypothesis_seed)
    plan = dataclasses.replace(Plan.drawn(seed, seed, num_ranks=2), num_simulations=12)
    outcome = endured(0, Ordeal(plan=plan, output_dir=tmp_path / "run", max_kills=NUM_KILLS))
    assert outcome.violations == (), [(kill.kind, kill.moment) for kill in outcome.kills]
