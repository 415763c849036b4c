"""Several simulations in one job: when they start, and what becomes of them when it ends."""

from itertools import permutations

import pytest

from stream_server.launcher.actions import Action, Cancel, Continue, Fail, GiveUp, StopStudy, Submit
from stream_server.launcher.entry import SETTLE_FAILED_S, SETTLE_S, Entry, State
from stream_server.launcher.limits import Limits
from stream_server.launcher.schedule import Schedule

EXCUSE = "simulation 0, which shared the job, failed"


def together(*simulations: int) -> Submit:
    first, *others = (Submit(simulation=it, attempt=0) for it in simulations)
    return Submit(simulation=first.simulation, attempt=0, beside=tuple(others))


def begun(num: int, **limits: object) -> tuple[Schedule, list[Action]]:
    limits = {"per_job": 2, "max_running": 2, "max_failed": 1.0, **limits}
    schedule = Schedule(Limits(**limits))  # type: ignore[arg-type]
    return schedule, schedule.replan(dict.fromkeys(range(num), -1), 0.0)


def running(num: int, **limits: object) -> Schedule:
    """A schedule of these many simulations at time 0, of which something has come."""
    schedule, _ = begun(num, **limits)
    schedule.progress(0, 0, 1, False, 0.0)
    return schedule


def submits(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Submit)]


def test_first_attempts_share_jobs_and_the_last_job_is_a_smaller_one() -> None:
    assert begun(5, max_running=6)[1] == [together(0, 1), together(2, 3), together(4)]


def test_a_job_starts_only_when_there_is_room_for_all_of_it() -> None:
    schedule, actions = begun(4, max_running=3)
    assert actions == [together(0, 1)]
    schedule.finished(0, 1.0)
    schedule.finished(1, 1.0)
    assert schedule.job_ended(0, 0, 0, "", 2.0) == [together(2, 3)]
    assert schedule.job_ended(1, 0, 0, "", 2.0) == []


def test_an_attempt_after_a_failure_has_a_job_of_its_own() -> None:
    schedule = running(4)
    schedule.job_ended(0, 0, 1, "crashed", 1.0)
    schedule.job_ended(1, 0, None, "was ended with its job", 1.0, excuse=EXCUSE)
    actions = schedule.tick(1.0 + SETTLE_FAILED_S)
    assert submits(actions) == [Submit(simulation=0, attempt=1), Submit(simulation=1, attempt=1)]


def test_what_was_ever_tried_under_another_server_has_a_job_of_its_own() -> None:
    schedule = Schedule(Limits(per_job=2, max_running=4))
    schedule.recall({2: 0})
    actions = schedule.replan({0: -1, 1: 3, 2: -1, 3: -1}, 0.0)
    assert actions == [together(0, 3), Submit(simulation=1, attempt=4), Submit(simulation=2, attempt=1)]


# What the server has heard of, and how the attempt ended: of three that share a job, one is to blame.
GUILTY, EXCUSED, FINISHED = (1, "crashed", ""), (None, "was ended with its job", EXCUSE), (0, "exit 0", "")


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("said_before", [True, False])
def test_in_whatever_order_ends_are_told_each_member_is_judged_by_its_own(
    order: tuple[int, ...], said_before: bool
) -> None:
    schedule = running(3, per_job=3, max_running=3, retries=0)
    ends = (GUILTY, EXCUSED, FINISHED)
    if said_before:
        assert schedule.finished(2, 0.5) == []
    actions: list[Action] = []
    for simulation in order:
        exit_code, reason, excuse = ends[simulation]
        actions += schedule.job_ended(simulation, 0, exit_code, reason, 1.0, excuse=excuse)
    if not said_before:
        actions += schedule.finished(2, 1.5)
    actions += schedule.tick(1.0 + SETTLE_FAILED_S)
    assert [it for it in actions if not isinstance(it, Submit)] == [
        Fail(simulation=0, attempt=0, reason="crashed"),
        GiveUp(simulation=0, attempts=1, reason="crashed", redraw=False),
        Fail(simulation=1, attempt=0, reason="was ended with its job", excuse=EXCUSE),
    ]
    assert submits(actions) == [Submit(simulation=1, attempt=1)]
    assert schedule.state(2) is State.FINISHED


def test_one_that_made_no_progress_ends_the_job_and_the_others_are_excused() -> None:
    schedule = running(2, timeout_s=60, retries=0)
    schedule.progress(1, 0, 1, False, 30.0)
    assert schedule.tick(60.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.tick(95.0) == []
    late = schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 96.0)
    other = schedule.job_ended(1, 0, None, "was ended with its job", 96.0, excuse="none that counts")
    assert [it for it in late + other if isinstance(it, Fail)] == [
        Fail(simulation=0, attempt=0, reason="no new time step for 60 s"),
        Fail(
            simulation=1,
            attempt=0,
            reason="was ended with its job",
            excuse="simulation 0, which shared the job, was cancelled",
        ),
    ]
    assert submits(late + other) == [Submit(simulation=1, attempt=1)]


def test_the_late_one_is_not_excused_by_what_the_cancel_did_to_the_others() -> None:
    schedule = running(2, timeout_s=60)
    schedule.progress(1, 0, 1, False, 30.0)
    schedule.tick(60.0)
    (failed, *_) = schedule.job_ended(0, 0, None, "ended", 61.0, excuse="simulation 1, which shared the job, failed")
    assert failed == Fail(simulation=0, attempt=0, reason="no new time step for 60 s")


def test_a_finished_simulation_may_stay_as_long_as_the_others_of_its_job_run() -> None:
    schedule = running(2, timeout_s=60)
    schedule.finished(0, 10.0)
    for second in range(10, 200, 50):
        schedule.progress(1, 0, second, False, float(second))
        assert schedule.tick(second + 49.0) == []
    schedule.finished(1, 200.0)
    assert schedule.wake_at == 260.0
    assert schedule.tick(260.0) == [Cancel(simulation=0, attempt=0)]


def test_a_study_that_stops_cancels_a_job_once() -> None:
    schedule = running(4, max_running=4)
    assert schedule.stop(1.0) == [Cancel(simulation=0, attempt=0), Cancel(simulation=2, attempt=0)]
    assert schedule.tick(2.0) == []


def test_a_job_that_fails_before_anything_came_counts_once_for_all_in_it() -> None:
    schedule, _ = begun(9, per_job=3, max_running=3)
    actions: list[Action] = []
    for first in (0, 3, 6):
        assert not any(isinstance(it, StopStudy) for it in actions)
        now = 10.0 * first
        actions = [it for i in range(3) for it in schedule.job_ended(first + i, 0, 1, "crashed", now)]
        actions += schedule.tick(now + SETTLE_FAILED_S)
    assert [it.simulation for it in actions if isinstance(it, StopStudy)] == [6]


def test_all_of_a_job_go_on_under_the_next_server_and_what_is_finished_waits_for_the_others() -> None:
    schedule = running(3, per_job=3, max_running=3, timeout_s=60)
    schedule.finished(0, 1.0)
    schedule.pause()
    assert schedule.replan({1: 0, 2: 0}, 100.0) == [
        Continue(simulation=it, attempt=0, attached=False) for it in (0, 1, 2)
    ]
    schedule.progress(1, 0, 1, False, 150.0)
    schedule.progress(2, 0, 1, False, 155.0)
    assert schedule.wake_at == 210.0


def test_those_that_a_launcher_finds_in_one_job_are_cancelled_with_it() -> None:
    schedule = Schedule(Limits(per_job=2, max_running=2, timeout_s=60))
    found = [Entry(id=it, state=State.RUNNING, attempt=0, has_job=True, mates=(0, 1)) for it in (0, 1)]
    schedule.recall({0: 0, 1: 0}, found, anything_came=True)
    # The server has seen a later attempt of the second.
    assert schedule.replan({0: 0, 1: 4}, 1.0) == [
        Continue(simulation=0, attempt=0, attached=False),
        Cancel(simulation=1, attempt=0),
    ]
    (failed, again) = schedule.job_ended(0, 0, None, "ended", 2.0)
    assert isinstance(failed, Fail)
    assert not failed.counted
    assert again == Submit(simulation=0, attempt=1)


def test_exit_code_0_of_one_is_judged_by_what_has_come_of_it() -> None:
    schedule = running(2, retries=0)
    for simulation in (0, 1):
        schedule.job_ended(simulation, 0, 0, "ended with exit code 0", 1.0)
    schedule.finished(1, 1.1)
    actions = schedule.tick(1.0 + SETTLE_S)
    assert [it.simulation for it in actions if isinstance(it, GiveUp)] == [0]
