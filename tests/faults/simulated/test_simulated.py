"""Whole studies on a simulated machine: the short form of `python -m tests.campaigns simulated`."""

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from tests.campaigns import Tally
from tests.faults.simulated.campaign import SimulatedSchedules
from tests.faults.simulated.drawing import drawn
from tests.faults.simulated.judge import Outcome, judged
from tests.faults.simulated.minimise import fails_like, minimised
from tests.faults.simulated.plan import Fault, Plan
from tests.faults.simulated.planted import PLANTED
from tests.faults.simulated.seeds import kept, of_line, to_line

SEED = 6
NUM_SCHEDULES = 40
ENOUGH = 60
SOON_FOUND = ("ledger-off-by-one", "commit-by-the-first")


def told(outcome: Outcome) -> str:
    """The violations, with the plan that repeats them."""
    return "\n  ".join([to_line(outcome.end.plan), *outcome.violations])


def test_a_study_without_faults_is_complete_and_has_one_incarnation() -> None:
    outcome = judged(Plan(seed="calm"))
    assert outcome.violations == []
    assert len(outcome.end.incarnations) == 1
    assert outcome.end.report["samples"]["trained"] == 24


@pytest.mark.slow
def test_studies_keep_their_promises_whatever_befalls_them(tmp_path: Path) -> None:
    rounds = list(SimulatedSchedules(folder=tmp_path, seed=SEED, schedules=NUM_SCHEDULES, whole=True).run())
    tally = Tally.of(rounds)
    assert not tally.violations, [(it.again, it.violations) for it in rounds if it.violations]
    kinds = (
        "with windows on several ranks",
        "with static fields",
        "with fields that differ in size",
        "with workers",
        "steered",
    )
    assert all(tally.totals[what] > 0 for what in ("restarts of the server", *kinds))
    happened = {what for what, _ in tally.table}
    assert {"kill of a rank", "kill of a client", "kill of a launcher", "cut of a connection"} <= happened


@pytest.mark.parametrize("plan", [plan for _, plan in kept()], ids=[comment[:60] for comment, _ in kept()])
def test_what_failed_once_does_not_fail_again(plan: Plan) -> None:
    outcome = judged(plan)
    assert not outcome.violations, told(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("bug", SOON_FOUND)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    campaign = SimulatedSchedules(folder=tmp_path, seed=SEED, schedules=ENOUGH, planted=bug, whole=True)
    with closing(campaign.run()) as rounds:
        assert any(it.violations for it in rounds), f"{bug} was not found in {ENOUGH} schedules of seed {SEED}"


def test_what_failed_once_fails_again_when_its_bug_comes_back() -> None:
    told_by = {comment.partition(":")[0]: plan for comment, plan in kept()}
    known = told_by.keys() & PLANTED.keys()
    assert known
    for bug in known:
        with PLANTED[bug]():
            assert judged(told_by[bug]).violations, bug


def test_equal_plans_have_equal_histories() -> None:
    ends = [judged(drawn(SEED, 1)).end for _ in range(2)]
    digests = {hashlib.sha256(repr(end.trace).encode()).hexdigest() for end in ends}
    assert len(digests) == 1
    assert ends[0].audit == ends[1].audit


@pytest.mark.slow
def test_a_plan_that_fails_is_made_smaller_and_written_as_a_line() -> None:
    culprit = Fault(kind="kill", target="", failpoint="launcher.after_submit", passage=2)
    others = (Fault(kind="cut", target="", at=1.0), Fault(kind="stall", target="", at=2.0, lasts_s=0.1))
    plan = Plan(seed="smaller", policy="reservoir", faults=(others[0], culprit, others[1]), duplicates=0.2)
    with PLANTED["start-not-in-journal"]():
        [*_, first] = judged(plan).violations[:1]
        smallest = minimised(plan, fails=fails_like(first), max_runs=16)
    assert smallest.faults == (culprit,)
    assert smallest.policy == "fifo"
    assert of_line(to_line(smallest)) == smallest
