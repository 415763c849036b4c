"""Several simulations in one job: when they start, and what becomes of them when it ends."""

from itertools import permutations

import pytest

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import CONFIRM_FAILURE_S, CONFIRM_S
from stream_server.launcher.schedule.simulation import (
    Action,
    Cancel,
    Continue,
    ScheduledAttempt,
    ScheduledJob,
    ScheduledPhase,
    ScheduledSimulation,
    ScheduledState,
    Submit,
)
from stream_server.messages.launcher_link import Failed, GaveUp, TooMany

EXCUSE = "simulation 0, which shared the job, failed"
CANCELLED = "simulation 0, which shared the job, was cancelled"
WITH_ITS_JOB = "was ended with its job"
EXIT_3 = "a rank ended with exit code 3"


def together(*simulations: int) -> Submit:
    return Submit(attempts=tuple((it, 0) for it in simulations))


def begun(num: int, **limits: object) -> tuple[SimulationSchedule, list[Action]]:
    limits = {"per_job": 2, "max_running": 2, "max_failed": 100, **limits}
    schedule = SimulationSchedule(ScheduleLimits(**limits))  # type: ignore[arg-type]
    return schedule, schedule.replan(dict.fromkeys(range(num), -1), 0.0)


def running(num: int, **limits: object) -> SimulationSchedule:
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
    actions = schedule.tick(1.0 + CONFIRM_FAILURE_S)
    assert submits(actions) == [Submit(attempts=((0, 1),)), Submit(attempts=((1, 1),))]


def test_what_was_ever_tried_under_another_server_has_a_job_of_its_own() -> None:
    schedule = SimulationSchedule(ScheduleLimits(per_job=2, max_running=4))
    schedule.restore({2: 0}, [], 0.0)
    actions = schedule.replan({0: -1, 1: 3, 2: -1, 3: -1}, 0.0)
    assert actions == [together(0, 3), Submit(attempts=((1, 4),)), Submit(attempts=((2, 1),))]


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
    actions += schedule.tick(1.0 + CONFIRM_FAILURE_S)
    assert [it for it in actions if not isinstance(it, Submit)] == [
        Failed(simulation=0, attempt=0, reason="crashed"),
        GaveUp(simulation=0, attempts=1, reason="crashed", redraw=False),
        Failed(simulation=1, attempt=0, reason="was ended with its job", excuse=EXCUSE),
    ]
    assert submits(actions) == [Submit(attempts=((1, 1),))]
    assert schedule.state(2) is ScheduledState.FINISHED


def test_one_that_made_no_progress_ends_the_job_and_the_others_are_excused() -> None:
    schedule = running(2, timeout_s=60, retries=0)
    schedule.progress(1, 0, 1, False, 30.0)
    assert schedule.tick(60.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.tick(95.0) == []
    late = schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 96.0)
    other = schedule.job_ended(1, 0, None, "was ended with its job", 96.0, excuse="none that counts")
    assert [it for it in late + other if isinstance(it, Failed)] == [
        Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)"),
        Failed(
            simulation=1,
            attempt=0,
            reason="was ended with its job",
            excuse="simulation 0, which shared the job, was cancelled",
        ),
    ]
    assert submits(late + other) == [Submit(attempts=((1, 1),))]


def test_the_late_one_is_not_excused_by_what_the_cancel_did_to_the_others() -> None:
    schedule = running(2, timeout_s=60)
    schedule.progress(1, 0, 1, False, 30.0)
    schedule.tick(60.0)
    (failed, *_) = schedule.job_ended(0, 0, None, "ended", 61.0, excuse="simulation 1, which shared the job, failed")
    assert failed == Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)")


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
        assert not any(isinstance(it, TooMany) for it in actions)
        now = 10.0 * first
        actions = [it for i in range(3) for it in schedule.job_ended(first + i, 0, 1, "crashed", now)]
        actions += schedule.tick(now + CONFIRM_FAILURE_S)
    assert [it.simulation for it in actions if isinstance(it, TooMany)] == [6]


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


def in_one_job(*, cancelled: str = "") -> list[ScheduledSimulation]:
    """Two simulations whose attempts another launcher has started in one job, and maybe cancelled for the first."""
    job = ScheduledJob(members=(0, 1), is_cancelled=bool(cancelled))
    found = []
    for it in job.members:
        attempt = ScheduledAttempt(simulation=it, number=0, phase=ScheduledPhase.RUNNING, job=job)
        if cancelled:
            attempt.cancel(cancelled, CANCELLED if it else "")
        found.append(ScheduledSimulation(id=it, state=ScheduledState.RUNNING, attempt=attempt))
    return found


def test_those_that_a_launcher_finds_in_one_job_are_cancelled_with_it() -> None:
    schedule = SimulationSchedule(ScheduleLimits(per_job=2, max_running=2, timeout_s=60))
    schedule.restore({0: 0, 1: 0}, in_one_job(), 0.0, anything_came=True)
    # The server has seen a later attempt of the second.
    assert schedule.replan({0: 0, 1: 4}, 1.0) == [
        Continue(simulation=0, attempt=0, attached=False),
        Cancel(simulation=1, attempt=0),
    ]
    (failed, again) = schedule.job_ended(0, 0, None, "ended", 2.0)
    assert isinstance(failed, Failed)
    assert failed.excuse
    assert again == Submit(attempts=((0, 1),))


def test_exit_code_0_of_one_is_judged_by_what_has_come_of_it() -> None:
    schedule = running(2, retries=0)
    for simulation in (0, 1):
        schedule.job_ended(simulation, 0, 0, "ended with exit code 0", 1.0)
    schedule.finished(1, 1.1)
    actions = schedule.tick(1.0 + CONFIRM_S)
    assert [it.simulation for it in actions if isinstance(it, GaveUp)] == [0]


def fails(actions: list[Action]) -> list[Failed]:
    return [it for it in actions if isinstance(it, Failed)]


def killed(schedule: SimulationSchedule, *simulations: int, now: float) -> list[Action]:
    """The end of a job that was cancelled, in which all that is left looks alike."""
    return [it for i in simulations for it in schedule.job_ended(i, 0, 143, "was killed by SIGTERM", now)]


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("over", [True, False])
def test_those_that_wait_for_one_that_failed_are_not_to_blame_when_the_time_is_up(guilty: int, over: bool) -> None:
    schedule = running(2, timeout_s=60)
    schedule.ranks_ended(guilty, 0, EXIT_3, 1.0, over=over)
    innocent = 1 - guilty
    assert schedule.tick(60.0) == [Cancel(simulation=innocent, attempt=0)]
    excuse = f"simulation {guilty}, which shared the job, failed"
    told = sorted(fails(killed(schedule, 0, 1, now=61.0)), key=lambda it: it.simulation != guilty)
    assert told == [
        Failed(simulation=guilty, attempt=0, reason=EXIT_3),
        Failed(simulation=innocent, attempt=0, reason=WITH_ITS_JOB, excuse=excuse),
    ]


def test_one_that_failed_takes_nobody_down_that_makes_progress() -> None:
    schedule = running(2, timeout_s=60)
    schedule.ranks_ended(1, 0, EXIT_3, 1.0, over=True)
    for second in range(50, 500, 50):
        schedule.progress(0, 0, second, False, float(second))
        assert schedule.tick(second + 49.0) == []
    schedule.finished(0, 500.0)
    assert schedule.wake_at == 560.0
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 501.0)
    schedule.job_ended(1, 0, 3, EXIT_3, 501.0)
    assert fails(schedule.tick(501.0 + CONFIRM_FAILURE_S)) == [Failed(simulation=1, attempt=0, reason=EXIT_3)]


def test_one_that_ended_without_finish_takes_nobody_down_and_is_judged_by_that_whoever_ends_the_job() -> None:
    schedule = running(2, timeout_s=60)
    schedule.ranks_ended(1, 0, "", 1.0, over=True)
    schedule.progress(0, 0, 2, False, 50.0)
    assert schedule.tick(109.0) == []
    assert schedule.tick(110.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.tick(110.0) == []
    late = schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 111.0)
    assert fails(late) == [
        Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)")
    ]
    assert fails(schedule.job_ended(1, 0, 0, "ended with exit code 0", 111.0)) == []
    (failed,) = fails(schedule.tick(111.0 + CONFIRM_S))
    assert not failed.excuse
    assert failed.reason.startswith("ended with exit code 0, but had not finished")


def test_what_its_processes_do_when_they_are_told_to_end_is_held_against_nobody() -> None:
    schedule = running(2, timeout_s=60)
    schedule.progress(1, 0, 1, False, 30.0)
    schedule.tick(60.0)
    schedule.ranks_ended(1, 0, "a rank was killed by SIGTERM", 60.5, over=True)
    assert fails([*killed(schedule, 0, now=61.0), *schedule.job_ended(1, 0, 143, "killed", 61.0)]) == [
        Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)"),
        Failed(simulation=1, attempt=0, reason=WITH_ITS_JOB, excuse=CANCELLED),
    ]


def test_when_all_of_a_job_are_over_it_may_take_the_timeout_to_end() -> None:
    schedule = running(2, timeout_s=60)
    schedule.ranks_ended(1, 0, EXIT_3, 1.0, over=True)
    schedule.ranks_ended(0, 0, "", 40.0, over=True)
    # A second rank of it is noticed.
    schedule.ranks_ended(1, 0, EXIT_3, 90.0, over=True)
    assert schedule.wake_at == 100.0


def test_what_had_finished_for_a_server_that_lost_it_does_not_take_the_others_down() -> None:
    schedule = running(2, timeout_s=60)
    schedule.finished(0, 1.0)
    schedule.pause()
    schedule.replan({0: 0, 1: 0}, 100.0)
    for second in range(100, 500, 50):
        schedule.progress(1, 0, second, False, float(second))
        assert schedule.tick(second + 49.0) == []
    schedule.finished(1, 500.0)
    schedule.job_ended(1, 0, 0, "ended with exit code 0", 501.0)
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 501.0)
    failed, again = schedule.tick(501.0 + CONFIRM_S)
    assert isinstance(failed, Failed)
    assert failed.excuse
    assert again == Submit(attempts=((0, 1),))


def test_who_is_to_blame_for_a_cancel_is_known_before_the_job_has_ended() -> None:
    schedule = running(4, per_job=4, max_running=4, timeout_s=60)
    schedule.finished(2, 1.0)
    schedule.ranks_ended(3, 0, "", 1.0, over=True)
    schedule.tick(60.0)
    # Of what had ended before, the cancel says nothing.
    assert [(it.simulation, it.reason, it.excuse) for it in schedule.decided(0)] == [
        (0, "sent no new time step for 60 s (simulation.timeout_s)", ""),
        (1, WITH_ITS_JOB, CANCELLED),
    ]


def test_the_end_of_a_study_is_held_against_nobody() -> None:
    schedule = running(2)
    assert schedule.stop(1.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.decided(0) == []


def test_a_cancel_of_a_launcher_that_was_killed_is_held_against_the_same_ones() -> None:
    schedule = SimulationSchedule(ScheduleLimits(per_job=2, max_running=2, retries=0, max_failed=100))
    schedule.restore({0: 0, 1: 0}, in_one_job(cancelled="late"), 0.0, anything_came=True)
    assert schedule.replan({0: 0, 1: 0}, 1.0, new_incarnation=False) == []
    assert [(it.simulation, not it.excuse) for it in fails(killed(schedule, 0, 1, now=2.0))] == [(0, True), (1, False)]


def test_a_job_is_shared_until_it_is_known_what_each_end_means() -> None:
    schedule = running(2)
    schedule.finished(0, 1.0)
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 2.0)
    assert schedule.shares_a_job(0)
    schedule.job_ended(1, 0, 3, "crashed", 2.0)
    assert schedule.shares_a_job(0)
    schedule.tick(2.0 + CONFIRM_FAILURE_S)
    assert not schedule.shares_a_job(0)


def test_in_a_study_that_stops_a_job_that_cannot_be_begun_is_no_error() -> None:
    schedule = running(2)
    schedule.stop(1.0)
    schedule.job_ended(0, 0, None, "could not be prepared", 1.0)
    for simulation in (0, 1):
        schedule.postpone(simulation, 1.0)
