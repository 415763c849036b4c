"""At each failpoint of the list the process that meets it is killed, once, and the study loses nothing."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.chaos.campaign import endured
from tests.faults.chaos.ordeal import Ordeal
from tests.faults.chaos.plan import Plan
from tests.faults.chaos.sweep import SITUATIONS, Documented, documented
from tests.support.failpoints import failpoints

IN_A_STUDY = [point for point in documented() if point.is_in_a_study]
# What `make test` has time for: the first failpoint of the parts between which most passes, all in one study.
SAMPLED_PARTS = ("checkpoint", "client", "launcher", "receiver")
FIRST_OF_PARTS = {point.part: point for point in reversed(IN_A_STUDY) if point.part in SAMPLED_PARTS}

CALM_S = 50.0
PLAN = Plan(
    seed="sweep",
    policy="firo",
    num_simulations=6,
    num_steps=20,
    simulation_step_s=0.05,
    step_s=0.01,
    every_batches=3,
)
# The first simulations still run when the server comes to its second checkpoint.
LONGER_STEPS = 60
JOURNAL = ("launcher.before_journal", "launcher.after_journal")
PASSAGES = (2, 3, 5, 8, 13)


def assert_costs_nothing(armed: str, met: Sequence[str], folder: Path, plan: Plan = PLAN) -> None:
    """Run a study with these failpoints armed; none of its samples is lost, and those of `met` were met for sure."""
    marks = folder / "met"
    environment = failpoints(marks, armed)
    outcome = endured(
        0, Ordeal(plan=plan, output_dir=folder / "run", max_kills=0, calm_s=CALM_S, environment=environment)
    )
    assert outcome.violations == ()
    missed = [name for name in met if not (marks / name).exists()]
    assert not missed, f"no process came to {missed}"


@pytest.mark.full
def test_processes_that_are_killed_at_the_failpoints_of_four_parts_cost_nothing(tmp_path: Path) -> None:
    points = FIRST_OF_PARTS.values()
    armed = ",".join(dict.fromkeys(point.armed("kill") for point in points))
    assert_costs_nothing(armed, [point.name for point in points], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("point", IN_A_STUDY, ids=lambda point: point.name)
def test_a_process_that_is_killed_at_a_failpoint_costs_nothing(point: Documented, tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, record=point.part == "record")
    if SITUATIONS[point.situation]:
        plan = dataclasses.replace(plan, num_steps=LONGER_STEPS)
    assert_costs_nothing(point.armed("kill"), [point.name], tmp_path, plan)


@pytest.mark.full
@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("name", JOURNAL)
def test_a_launcher_may_die_at_any_record_of_its_journal(name: str, passage: int, tmp_path: Path) -> None:
    assert_costs_nothing(f"{name}=kill@{passage}", [name], tmp_path)
