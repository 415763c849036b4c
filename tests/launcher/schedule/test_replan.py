"""The schedule across servers: what one that comes back finds, and what the schedule makes of its plan."""

import math

import pytest

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import POSTPONE_S, SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import CONFIRM_FAILURE_S, CONFIRM_S
from stream_server.launcher.schedule.simulation import (
    RESTARTED,
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
from stream_server.messages.launcher_link import Attached, AttachRequest, Failed, GaveUp, TooMany


def running(simulations: int, **limits: object) -> SimulationSchedule:
    """A schedule of these many simulations, at time 0, of which something has come."""
    schedule = SimulationSchedule(ScheduleLimits(**limits))  # type: ignore[arg-type]
    schedule.replan(dict.fromkeys(range(simulations), -1), 0.0)
    schedule.progress(0, 0, 1, False, 0.0)
    return schedule


def test_what_runs_goes_on() -> None:
    schedule = running(3, max_running=2)
    schedule.pause()
    assert schedule.replan({0: 0, 1: 0, 2: -1}, 100.0) == [
        Continue(simulation=0, attempt=0, attached=False),
        Continue(simulation=1, attempt=0, attached=False),
    ]


def test_while_the_server_is_away_nothing_is_started_and_no_clock_runs() -> None:
    schedule = running(3, timeout_s=60)
    schedule.pause()
    assert schedule.wake_at == math.inf
    assert schedule.tick(10_000.0) == []
    assert schedule.job_ended(0, 0, 0, "ended with exit code 0", 10_000.0) == []
    assert schedule.tick(20_000.0) == []


def test_the_clock_of_what_goes_on_begins_anew() -> None:
    schedule = running(1, timeout_s=60)
    schedule.progress(0, 0, 30, True, 50.0)
    schedule.pause()
    schedule.replan({0: 0}, 1000.0)
    # The steps that the new server knows are not sent again: catching up may take as long as they took before.
    assert schedule.wake_at == 1000.0 + 60.0 + 50.0
    schedule.progress(0, 0, 1, False, 1100.0)
    assert schedule.wake_at == 1100.0 + 60.0


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_simulation_whose_job_ended_while_the_server_was_away_runs_again_and_has_not_failed(exit_code: int) -> None:
    schedule = running(1, retries=0)
    schedule.pause()
    schedule.job_ended(0, 0, exit_code, "over", 1.0)
    assert schedule.replan({0: 0}, 2.0) == [Submit(attempts=((0, 1),))]


def recalled(*, cancelled: str = "", excuse: str = "", **limits: object) -> SimulationSchedule:
    """A schedule of one simulation, of which another launcher has started attempt 0, and maybe cancelled it."""
    attempt = ScheduledAttempt(
        simulation=0,
        number=0,
        phase=ScheduledPhase.RUNNING,
        job=ScheduledJob(members=(0,), is_cancelled=bool(cancelled)),
    )
    if cancelled:
        attempt.cancel(cancelled, excuse)
    entry = ScheduledSimulation(id=0, state=ScheduledState.RUNNING, attempt=attempt)
    schedule = SimulationSchedule(ScheduleLimits(**limits))  # type: ignore[arg-type]
    schedule.restore({0: 0}, [entry], 0.0, anything_came=True)
    return schedule


def test_an_attempt_that_was_cancelled_and_ended_before_the_plan_came_has_failed() -> None:
    schedule = recalled(cancelled="no new time step for 8 s", retries=1)
    assert schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 1.0) == []
    assert schedule.replan({0: 0}, 2.0, new_incarnation=False) == [
        Failed(simulation=0, attempt=0, reason="no new time step for 8 s"),
        Submit(attempts=((0, 1),)),
    ]


def test_an_attempt_that_was_cancelled_and_ended_before_the_plan_came_fails_with_its_excuse() -> None:
    schedule = recalled(cancelled="over", excuse="another", retries=0)
    schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 1.0)
    fail, submit = schedule.replan({0: 0}, 2.0, new_incarnation=False)
    assert fail == Failed(simulation=0, attempt=0, reason="over", excuse="another")
    assert submit == Submit(attempts=((0, 1),))


def test_what_was_cancelled_as_the_study_stopped_has_not_failed_when_it_goes_on() -> None:
    schedule = running(1, retries=0)
    schedule.stop(1.0)
    schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 2.0)
    assert schedule.replan({0: 0}, 3.0, new_incarnation=False) == [Submit(attempts=((0, 1),))]


def test_a_simulation_whose_last_word_was_awaited_runs_again() -> None:
    schedule = running(1)
    schedule.job_ended(0, 0, 0, "over", 1.0)
    schedule.pause()
    assert schedule.replan({0: 0}, 2.0) == [Submit(attempts=((0, 1),))]


def test_a_finished_simulation_that_the_server_has_lost_runs_again() -> None:
    schedule = running(1)
    schedule.finished(0, 1.0)
    schedule.job_ended(0, 0, 0, "over", 2.0)
    schedule.pause()
    assert schedule.replan({0: 0}, 3.0) == [Submit(attempts=((0, 1),))]


def test_a_finished_simulation_that_the_server_has_lost_goes_on_if_its_job_still_runs() -> None:
    schedule = running(1)
    schedule.finished(0, 1.0)
    schedule.pause()
    assert schedule.replan({0: 0}, 3.0) == [Continue(simulation=0, attempt=0, attached=False)]
    assert schedule.state(0) is ScheduledState.RUNNING


def test_what_runs_but_is_not_planned_is_finished_and_hears_so_and_may_end_by_itself() -> None:
    schedule = running(2, timeout_s=60)
    schedule.pause()
    assert schedule.replan({1: -1}, 100.0) == [Continue(simulation=0, attempt=0, attached=False)]
    assert schedule.state(0) is ScheduledState.FINISHED
    assert schedule.wake_at == 160.0
    assert schedule.job_ended(0, 0, 0, "over", 110.0) == [Submit(attempts=((1, 0),))]


def test_a_simulation_that_waits_and_is_not_planned_any_more_is_never_started() -> None:
    schedule = running(3)
    schedule.pause()
    schedule.replan({0: 0, 2: -1}, 1.0)
    schedule.finished(0, 2.0)
    assert schedule.job_ended(0, 0, 0, "over", 2.0) == [Submit(attempts=((2, 0),))]
    assert schedule.state(1) is ScheduledState.FINISHED


def test_a_simulation_that_was_given_up_and_is_planned_is_given_up_again() -> None:
    schedule = running(20, retries=0)
    schedule.job_ended(0, 0, 1, "crashed", 1.0)
    schedule.tick(1.0 + CONFIRM_FAILURE_S)
    schedule.pause()
    actions = schedule.replan(dict.fromkeys(range(20), -1), 5.0)
    assert GaveUp(simulation=0, attempts=1, reason="crashed", redraw=False) in actions
    assert not any(isinstance(action, TooMany) for action in actions)


def test_too_many_that_were_given_up_stop_the_next_server_too() -> None:
    schedule = running(2, retries=0)
    schedule.job_ended(0, 0, 1, "crashed", 1.0)
    schedule.tick(1.0 + CONFIRM_FAILURE_S)
    schedule.pause()
    stop, give_up = schedule.replan({0: 0, 1: -1}, 5.0)
    assert isinstance(stop, TooMany)
    assert isinstance(give_up, GaveUp)


def test_a_redrawn_simulation_that_the_server_has_lost_is_known_when_it_comes_again() -> None:
    schedule = running(1, retries=0, on_failure="redraw", max_failed=100)
    schedule.job_ended(0, 0, 1, "crashed", 1.0)
    schedule.tick(1.0 + CONFIRM_FAILURE_S)
    assert schedule.add(1, 3.0) == [Submit(attempts=((1, 0),))]
    schedule.pause()
    assert schedule.replan({0: 0}, 5.0) == [GaveUp(simulation=0, attempts=1, reason="crashed", redraw=True)]
    assert schedule.add(1, 6.0) == [Continue(simulation=1, attempt=0, attached=False)]


def test_the_last_word_of_a_simulation_is_awaited_even_after_a_stop_that_did_not_last() -> None:
    schedule = running(1, max_failed=100)
    schedule.job_ended(0, 0, 0, "over", 1.0)
    schedule.pause()
    schedule.stop(2.0)
    assert schedule.replan({0: 0}, 3.0, new_incarnation=False) == []
    failed, again = schedule.tick(3.0 + CONFIRM_S)
    assert isinstance(failed, Failed)
    assert again == Submit(attempts=((0, 1),))


def fail(schedule: SimulationSchedule, attempt: int, now: float) -> list[Action]:
    return [*schedule.job_ended(0, attempt, 1, "lost steps", now), *schedule.tick(now + CONFIRM_FAILURE_S)]


def test_the_failure_of_an_attempt_that_saw_a_restart_does_not_count_but_the_next_one_does() -> None:
    schedule = running(1, retries=0, max_failed=100)
    schedule.pause()
    schedule.replan({0: 0}, 1.0)
    assert fail(schedule, 0, 2.0) == [
        Failed(simulation=0, attempt=0, reason="lost steps", excuse=RESTARTED),
        Submit(attempts=((0, 1),)),
    ]
    failed, gave_up = fail(schedule, 1, 5.0)
    assert failed == Failed(simulation=0, attempt=1, reason="lost steps")
    assert isinstance(gave_up, GaveUp)


def test_under_the_same_server_a_failure_counts_whatever_launcher_sees_it() -> None:
    schedule = running(1, retries=0, max_failed=100)
    schedule.pause()
    schedule.replan({0: 0}, 1.0, new_incarnation=False)
    assert any(isinstance(action, GaveUp) for action in fail(schedule, 0, 2.0))


def test_under_the_same_server_a_last_word_is_still_awaited() -> None:
    schedule = recalled()
    schedule.job_ended(0, 0, 0, "over", 1.0)
    assert schedule.replan({0: 0}, 5.0, new_incarnation=False) == []
    assert schedule.wake_at == 5.0 + CONFIRM_S
    assert schedule.finished(0, 6.0) == []
    assert schedule.state(0) is ScheduledState.FINISHED


def test_an_end_that_nobody_saw_does_not_count() -> None:
    schedule = running(1, retries=0)
    schedule.job_ended(0, 0, None, "gone", 1.0, excuse=RESTARTED)
    assert schedule.tick(1.0 + CONFIRM_FAILURE_S) == [
        Failed(simulation=0, attempt=0, reason="gone", excuse=RESTARTED),
        Submit(attempts=((0, 1),)),
    ]


def test_an_attached_client_keeps_its_attempt() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False))
    schedule.replan({0: -1, 1: -1}, 0.0)
    schedule.attach(AttachRequest(token=7, simulation=1), 0.0)
    schedule.pause()
    assert schedule.replan({0: -1, 1: -1}, 5.0) == [Continue(simulation=1, attempt=0, attached=True)]
    assert schedule.attach(AttachRequest(token=8, simulation=1), 6.0) == [Attached(token=8, simulation=1, attempt=0)]


@pytest.mark.parametrize(("own", "planned", "attempt"), [(0, 5, 6), (7, 5, 8)])
def test_numbers_of_attempts_never_go_back(own: int, planned: int, attempt: int) -> None:
    schedule = SimulationSchedule(ScheduleLimits())
    schedule.restore({0: own}, [], 0.0)
    assert schedule.replan({0: planned}, 0.0) == [Submit(attempts=((0, attempt),))]


def test_an_attempt_that_the_server_knows_to_be_an_old_one_is_ended() -> None:
    schedule = running(1)
    schedule.pause()
    assert schedule.replan({0: 3}, 1.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 2.0) == [
        Failed(simulation=0, attempt=0, reason="the server has seen a later attempt", excuse=RESTARTED),
        Submit(attempts=((0, 4),)),
    ]


def test_the_failure_of_an_old_attempt_is_told_as_its_own() -> None:
    schedule = running(1)
    assert schedule.ranks_ended(0, 0, "rank 1 was killed by SIGSEGV", 0.5, over=False)
    schedule.pause()
    assert schedule.replan({0: 3}, 1.0) == [Cancel(simulation=0, attempt=0)]
    failed, _ = schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 2.0)
    assert failed == Failed(simulation=0, attempt=0, reason="rank 1 was killed by SIGSEGV", excuse=RESTARTED)


def test_an_attempt_may_be_renumbered_before_it_is_submitted() -> None:
    schedule = SimulationSchedule(ScheduleLimits())
    schedule.replan({0: -1}, 0.0)
    schedule.renumber(0, 4)
    schedule.progress(0, 4, 1, False, 0.0)
    assert Submit(attempts=((0, 5),)) in fail(schedule, 4, 1.0)


def test_an_attempt_that_could_not_be_begun_waits_and_so_do_all_others() -> None:
    schedule = running(2)
    schedule.finished(0, 1.0)
    assert schedule.job_ended(0, 0, 0, "over", 1.0) == [Submit(attempts=((1, 0),))]
    schedule.postpone(1, 1.0)
    assert schedule.wake_at == 1.0 + POSTPONE_S
    assert schedule.tick(1.0 + POSTPONE_S) == [Submit(attempts=((1, 1),))]
    assert schedule.wake_at == 1.0 + POSTPONE_S + schedule.limits.timeout_s


def test_a_study_that_was_stopped_goes_on_under_the_next_server() -> None:
    schedule = running(2)
    schedule.stop(1.0)
    schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 2.0)
    assert schedule.done
    schedule.pause()
    assert schedule.replan({0: 0, 1: -1}, 5.0) == [Submit(attempts=((0, 1),))]
    assert not schedule.done


def test_max_failed_is_a_share_of_the_whole_study_not_of_what_is_left_of_it() -> None:
    schedule = running(2, retries=0, max_failed=0.1, num_simulations=20)
    assert not any(isinstance(action, TooMany) for action in fail(schedule, 0, 1.0))


def test_a_client_that_attached_to_a_study_that_was_stopped_is_watched_again_under_the_next_server() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False, timeout_s=60))
    schedule.replan({0: -1}, 0.0)
    schedule.attach(AttachRequest(token=7, simulation=0), 0.0)
    schedule.stop(1.0)
    schedule.pause()
    schedule.replan({0: 0}, 5.0)
    assert schedule.wake_at == 65.0
