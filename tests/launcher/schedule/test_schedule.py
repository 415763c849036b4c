import math

import pytest

from stream_server.launcher.schedule.queues import ATTACH_WAIT_S
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import CONFIRM_FAILURE_S, CONFIRM_S
from stream_server.launcher.schedule.simulation import (
    SCHEDULED_TRANSITIONS,
    Cancel,
    ScheduledEvent,
    ScheduledPhase,
    ScheduledState,
    Submit,
)
from stream_server.messages.launcher_link import (
    Attached,
    AttachRequest,
    Dropped,
    Failed,
    FailedLater,
    GaveUp,
    NoneLeft,
    TooMany,
)


def running(simulations: int, **limits: object) -> SimulationSchedule:
    """A schedule of these many simulations, at time 0."""
    schedule = SimulationSchedule(ScheduleLimits(**limits))  # type: ignore[arg-type]
    schedule.replan(dict.fromkeys(range(simulations), -1), 0.0)
    return schedule


def after_the_first_step(schedule: SimulationSchedule, simulation: int = 0) -> SimulationSchedule:
    schedule.progress(simulation, 0, 1, False, 0.0)
    return schedule


def fail(schedule: SimulationSchedule, simulation: int, attempt: int, now: float) -> list[object]:
    """The job of an attempt ends badly and the server has no other word."""
    actions = schedule.job_ended(simulation, attempt, 1, "crashed", now)
    return [*actions, *schedule.tick(now + CONFIRM_FAILURE_S)]


def submits(actions: list[object]) -> list[Submit]:
    return [action for action in actions if isinstance(action, Submit)]


def asks(token: int, simulation: int | None, client: str = "") -> AttachRequest:
    return AttachRequest(token=token, simulation=simulation, client=client)


def test_an_attempt_ends_from_each_phase_and_once_only() -> None:
    over = {ScheduledPhase.ENDED, ScheduledPhase.KILLED}
    ends = {phase: to for (phase, event), to in SCHEDULED_TRANSITIONS.items() if event is ScheduledEvent.END}
    assert (set(ends), set(ends.values())) == (set(ScheduledPhase) - over, over)
    assert not over & {phase for phase, _ in SCHEDULED_TRANSITIONS}
    # What was not cancelled is judged by how its job ends.
    assert {phase for phase, to in ends.items() if to is ScheduledPhase.KILLED} == {ScheduledPhase.CANCELLED}


def test_at_most_max_running_jobs_run_and_the_lowest_ids_start_first() -> None:
    schedule = SimulationSchedule(ScheduleLimits(max_running=2))
    assert schedule.replan(dict.fromkeys(range(5), -1), 0.0) == [
        Submit(attempts=((0, 0),)),
        Submit(attempts=((1, 0),)),
    ]


def test_a_job_that_ends_makes_room_for_the_next_simulation() -> None:
    schedule = running(2)
    assert schedule.finished(0, 1.0) == []
    assert schedule.job_ended(0, 0, 0, "", 2.0) == [Submit(attempts=((1, 0),))]


def test_a_simulation_that_the_server_has_is_finished_whatever_its_exit_code() -> None:
    schedule = running(1)
    schedule.finished(0, 1.0)
    later = FailedLater(simulation=0, attempt=0, reason="was killed by SIGSEGV")
    assert schedule.job_ended(0, 0, 139, "was killed by SIGSEGV", 2.0) == [later]
    assert schedule.state(0) is ScheduledState.FINISHED


def test_a_failure_after_the_last_time_step_is_told_whichever_is_heard_of_first() -> None:
    schedule = running(1)
    assert schedule.job_ended(0, 0, 1, "ended with exit code 1", 1.0) == []
    assert schedule.finished(0, 1.5) == [FailedLater(simulation=0, attempt=0, reason="ended with exit code 1")]
    assert schedule.finished(0, 1.6) == []


def test_the_end_of_a_finished_simulation_that_is_killed_is_no_failure() -> None:
    schedule = running(1)
    schedule.finished(0, 1.0)
    schedule.stop(1.0, grace_s=0.0)
    schedule.tick(2.0)
    assert schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 3.0) == []


def test_the_server_may_say_that_a_simulation_finished_after_its_job_has_ended() -> None:
    schedule = running(1)
    assert schedule.job_ended(0, 0, 0, "", 1.0) == []
    assert schedule.finished(0, 1.5) == []
    assert schedule.tick(100.0) == []
    assert schedule.state(0) is ScheduledState.FINISHED


def test_a_program_that_never_connects_is_told_what_was_expected_of_it() -> None:
    schedule = running(1)
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 1.0)
    failed, _ = schedule.tick(1.0 + CONFIRM_S)
    assert isinstance(failed, Failed)
    assert failed.reason == (
        "ended with exit code 0, but had not finished: no time step had come. The program that simulation.command "
        "starts must connect with the client library, which reads STREAM_CONNECTION, send its time steps and "
        "call finish(); see docs/guide/clients.md"
    )


def test_exit_code_0_without_all_time_steps_is_a_failure() -> None:
    schedule = running(1)
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 1.0)
    # The last steps of a job may be heard of after its end.
    schedule.progress(0, 0, 1, False, 1.0)
    assert schedule.tick(0.99 + CONFIRM_S) == []
    failed, again = schedule.tick(1.0 + CONFIRM_S)
    assert failed == Failed(
        simulation=0,
        attempt=0,
        reason="ended with exit code 0, but had not finished: 1 time step had come, and no finish() afterwards "
        "(leaving `with connect()` calls it)",
    )
    assert again == Submit(attempts=((0, 1),))


def test_a_retry_that_ends_early_with_0_is_not_told_that_nothing_ever_came() -> None:
    schedule = running(1)
    schedule.progress(0, 0, 5, False, 0.0)
    schedule.job_ended(0, 0, 0, "ended with exit code 0", 1.0)
    schedule.tick(1.0 + CONFIRM_S)
    # The server has its steps from the first attempt, so that none of them counts for the second.
    schedule.job_ended(0, 1, 0, "ended with exit code 0", 20.0)
    [failed] = [it for it in schedule.tick(20.0 + CONFIRM_S) if isinstance(it, Failed)]
    assert failed.reason == (
        "ended with exit code 0, but had not finished: no time step had come that the server did not have, and no "
        "finish() afterwards (leaving `with connect()` calls it)"
    )


def test_a_failed_simulation_is_started_again_before_others() -> None:
    schedule = after_the_first_step(running(3))
    actions = fail(schedule, 0, 0, 1.0)
    assert actions == [Failed(simulation=0, attempt=0, reason="crashed"), Submit(attempts=((0, 1),))]


def test_after_its_retries_a_simulation_is_given_up_and_the_next_one_starts() -> None:
    schedule = after_the_first_step(running(20, retries=1))
    fail(schedule, 0, 0, 1.0)
    assert fail(schedule, 0, 1, 3.0) == [
        Failed(simulation=0, attempt=1, reason="crashed"),
        GaveUp(simulation=0, attempts=2, reason="crashed", redraw=False),
        Submit(attempts=((1, 0),)),
    ]
    assert schedule.state(0) is ScheduledState.GIVEN_UP


def test_a_redraw_is_asked_for_and_the_new_simulation_runs() -> None:
    schedule = after_the_first_step(running(1, retries=0, on_failure="redraw", max_failed=100))
    assert GaveUp(simulation=0, attempts=1, reason="crashed", redraw=True) in fail(schedule, 0, 0, 1.0)
    assert schedule.add(1, 3.0) == [Submit(attempts=((1, 0),))]


def test_on_failure_stop_stops_the_study_at_the_first_simulation_that_fails_for_good() -> None:
    schedule = after_the_first_step(running(20, retries=0, on_failure="stop"))
    stop, give_up = fail(schedule, 0, 0, 1.0)[-2:]
    assert isinstance(stop, TooMany)
    assert isinstance(give_up, GaveUp)
    assert "simulation.on_failure is stop" in stop.text


@pytest.mark.parametrize(("max_failed", "num"), [(1, 2), (1.0, 2), (3, 4), (0, 1), (0.1, 3)])
def test_max_failed_is_a_share_below_1_and_a_number_from_1_on(max_failed: float, num: int) -> None:
    schedule = after_the_first_step(running(20, retries=0, max_failed=max_failed))
    stops = [
        any(isinstance(action, TooMany) for action in fail(schedule, simulation, 0, 1.0 + 2 * simulation))
        for simulation in range(num)
    ]
    assert stops == [False] * (num - 1) + [True]


def test_above_max_failed_the_study_stops() -> None:
    schedule = after_the_first_step(running(20, retries=0, max_failed=0.05))
    assert submits(fail(schedule, 0, 0, 1.0)) == [Submit(attempts=((1, 0),))]
    stop = fail(schedule, 1, 0, 3.0)[-2]
    assert isinstance(stop, TooMany)
    assert "2 of 20 simulations failed for good, more than simulation.max_failed = 0.05" in stop.text


@pytest.mark.parametrize("max_running", [1, 8])
def test_three_failures_before_anything_came_stop_the_study(max_running: int) -> None:
    schedule = running(10, max_running=max_running, max_failed=100)
    seen = [*fail(schedule, 0, 0, 1.0), *fail(schedule, 1, 0, 3.0)]
    assert not any(isinstance(action, TooMany) for action in seen)
    stop = fail(schedule, 2, 0, 5.0)[-1]
    assert stop == TooMany(
        text="3 attempts in a row failed and no time step ever came: simulation 2 crashed", simulation=2, attempt=0
    )
    assert schedule.stopped


def test_one_that_always_crashes_does_not_stop_a_study_in_which_others_run() -> None:
    schedule = running(12, retries=2)
    assert submits(fail(schedule, 0, 0, 1.0)) == [Submit(attempts=((1, 0),))]
    after_the_first_step(schedule, 1)
    schedule.finished(1, 3.0)
    assert schedule.job_ended(1, 0, 0, "", 3.0) == [Submit(attempts=((0, 1),))]
    fail(schedule, 0, 1, 4.0)
    actions = fail(schedule, 0, 2, 6.0)
    assert GaveUp(simulation=0, attempts=3, reason="crashed", redraw=False) in actions
    assert submits(actions) == [Submit(attempts=((2, 0),))]


def test_before_anything_came_a_failed_simulation_waits_for_those_that_run() -> None:
    schedule = running(2, max_running=2)
    assert submits(fail(schedule, 0, 0, 1.0)) == []
    assert schedule.progress(1, 0, 1, False, 3.0) == [Submit(attempts=((0, 1),))]


def test_a_failed_simulation_that_turns_out_to_be_finished_while_it_waits_is_not_started_again() -> None:
    schedule = running(2)
    fail(schedule, 0, 0, 1.0)
    after_the_first_step(schedule, 1)
    schedule.finished(0, 3.0)
    schedule.finished(1, 4.0)
    assert schedule.job_ended(1, 0, 0, "", 5.0) == []


def test_a_simulation_without_progress_is_cancelled_and_started_again() -> None:
    schedule = after_the_first_step(running(1, timeout_s=60))
    assert schedule.wake_at == 60.0
    assert schedule.tick(60.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.tick(61.0) == []
    assert schedule.job_ended(0, 0, 143, "was killed by SIGTERM", 62.0) == [
        Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)"),
        Submit(attempts=((0, 1),)),
    ]


def test_while_the_launcher_slept_no_simulation_was_silent() -> None:
    schedule = running(1, timeout_s=60.0)
    schedule.was_suspended(40.0, 50.0)
    assert schedule.tick(99.0) == []
    schedule.was_suspended(1000.0, 99.0)
    assert schedule.wake_at == 159.0
    assert schedule.tick(159.0) == [Cancel(simulation=0, attempt=0)]


def test_each_new_time_step_starts_the_clock_again() -> None:
    schedule = running(1, timeout_s=60)
    assert schedule.progress(0, 0, 1, False, 40.0) == []
    assert schedule.progress(0, 0, 2, False, 50.0) == []
    assert schedule.tick(109.0) == []
    assert schedule.tick(110.0) == [Cancel(simulation=0, attempt=0)]


def test_no_clock_runs_while_the_server_holds_the_simulation_back() -> None:
    schedule = running(1, timeout_s=60)
    schedule.progress(0, 0, 1, True, 10.0)
    assert schedule.wake_at == math.inf
    assert schedule.tick(10_000.0) == []
    schedule.progress(0, 0, 1, False, 10_000.0)
    assert schedule.wake_at == 10_060.0


def test_a_new_attempt_has_time_to_catch_up_with_the_one_before() -> None:
    schedule = running(1, timeout_s=60)
    for second in range(0, 600, 50):
        schedule.progress(0, 0, second + 1, False, float(second))
    fail(schedule, 0, 0, 600.0)
    started = 600.0 + CONFIRM_FAILURE_S
    assert schedule.wake_at == started + 60.0 + 550.0


def test_an_attempt_of_which_a_new_server_has_all_gets_no_time_to_catch_up() -> None:
    schedule = running(1, timeout_s=60)
    schedule.progress(0, 0, 1, False, 550.0)
    schedule.pause()
    schedule.replan({0: 0}, 560.0)
    schedule.finished(0, 570.0)
    assert schedule.wake_at == 570.0 + 60.0


def test_a_late_word_of_the_last_attempt_does_not_count_for_the_next() -> None:
    schedule = running(1, timeout_s=60)
    schedule.progress(0, 0, 50, True, 1.0)
    fail(schedule, 0, 0, 10.0)
    schedule.progress(0, 0, 50, True, 12.0)
    schedule.progress(0, 1, 20, False, 70.0)
    assert schedule.tick(129.0) == []
    assert schedule.tick(130.0) == [Cancel(simulation=0, attempt=1)]


def test_a_job_that_was_held_back_last_is_cancelled_after_the_timeout_too() -> None:
    schedule = running(1, timeout_s=60)
    schedule.progress(0, 0, 1, True, 10.0)
    schedule.finished(0, 20.0)
    assert schedule.tick(80.0) == [Cancel(simulation=0, attempt=0)]


def test_a_job_that_goes_on_after_its_simulation_finished_is_cancelled_after_the_timeout() -> None:
    schedule = running(1, timeout_s=60)
    schedule.finished(0, 10.0)
    assert schedule.tick(69.0) == []
    assert schedule.tick(70.0) == [Cancel(simulation=0, attempt=0)]
    assert schedule.job_ended(0, 0, 143, "", 71.0) == []
    assert schedule.state(0) is ScheduledState.FINISHED


def test_an_invalid_simulation_is_not_tried_again() -> None:
    schedule = running(2)
    schedule.invalid(0, 1.0)
    assert schedule.job_ended(0, 0, 0, "", 2.0) == [Submit(attempts=((1, 0),))]
    assert schedule.state(0) is ScheduledState.INVALID


def test_a_client_that_attaches_gets_the_next_simulation() -> None:
    schedule = running(3)
    assert schedule.attach(asks(7, None), 1.0) == [Attached(token=7, simulation=1, attempt=0)]


def test_a_request_that_the_server_repeats_is_answered_once() -> None:
    schedule = running(4)
    schedule.attach(asks(7, None), 1.0)
    assert schedule.attach(asks(7, None), 1.1) == []
    assert schedule.attach(asks(8, None), 1.2) == [Attached(token=8, simulation=2, attempt=0)]


def test_a_request_of_the_next_server_is_a_new_one_whatever_its_number() -> None:
    schedule = running(3)
    schedule.attach(asks(7, None), 1.0)
    schedule.pause()
    schedule.replan(dict.fromkeys(range(3), -1), 2.0)
    assert schedule.attach(asks(7, None), 2.0) == [Attached(token=7, simulation=2, attempt=0)]


def test_a_client_that_asks_again_gets_the_simulation_that_it_has() -> None:
    schedule = running(3)
    schedule.attach(asks(7, None, "b"), 1.0)
    assert schedule.attach(asks(8, None, "b"), 1.1) == [Attached(token=8, simulation=1, attempt=0, client="b")]
    schedule.pause()
    schedule.replan(dict.fromkeys(range(3), -1), 2.0)
    assert schedule.attach(asks(7, None, "c"), 2.0) == [Attached(token=7, simulation=2, attempt=0, client="c")]
    assert schedule.attach(asks(8, None, "b"), 2.0) == [Attached(token=8, simulation=1, attempt=0, client="b")]


def test_a_client_whose_attempt_has_failed_gets_another_one() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False, timeout_s=60))
    schedule.replan({0: -1}, 0.0)
    schedule.attach(asks(1, None, "b"), 0.0)
    schedule.tick(60.0)
    assert schedule.attach(asks(2, None, "b"), 61.0) == [Attached(token=2, simulation=0, attempt=1, client="b")]


def test_a_client_that_attaches_may_name_its_simulation() -> None:
    schedule = running(3)
    assert schedule.attach(asks(7, 2), 1.0) == [Attached(token=7, simulation=2, attempt=0)]


def test_all_ranks_of_a_client_that_attaches_get_the_same_attempt() -> None:
    schedule = running(3)
    schedule.attach(asks(7, 2), 1.0)
    assert schedule.attach(asks(8, 2), 1.0) == [Attached(token=8, simulation=2, attempt=0)]


@pytest.mark.parametrize(
    ("simulation", "text", "busy"),
    [
        (0, "simulation 0 is run by the study itself", True),
        (1, "simulation 1 is finished", False),
        (9, "simulation 9 is not in the study", False),
    ],
)
def test_a_simulation_that_cannot_be_attached_is_declined(simulation: int, text: str, busy: bool) -> None:
    schedule = running(2)
    schedule.finished(1, 0.0)
    assert schedule.attach(asks(7, simulation), 1.0) == [NoneLeft(token=7, text=text, busy=busy)]


def test_a_study_without_a_command_only_waits_for_clients() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False))
    assert schedule.replan(dict.fromkeys(range(2), -1), 0.0) == []
    assert schedule.wake_at == math.inf
    assert schedule.attach(asks(1, None), 5.0) == [Attached(token=1, simulation=0, attempt=0)]


def test_no_more_than_max_attached_clients_are_attached_at_once() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False, max_attached=1))
    schedule.replan(dict.fromkeys(range(2), -1), 0.0)
    schedule.attach(asks(1, None), 0.0)
    assert schedule.attach(asks(2, None), 1.0) == []
    text = "as many simulations are attached as client.max_attached allows (1)"
    assert schedule.tick(1.0 + ATTACH_WAIT_S) == [NoneLeft(token=2, text=text, busy=True)]


def test_a_worker_may_ask_for_its_next_simulation_before_the_server_says_that_it_finished_one() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False, max_attached=1))
    schedule.replan(dict.fromkeys(range(2), -1), 0.0)
    schedule.attach(asks(1, None), 0.0)
    assert schedule.attach(asks(2, None), 1.0) == []
    assert schedule.finished(0, 1.1) == [Attached(token=2, simulation=1, attempt=0)]


def test_a_worker_that_asks_when_everything_is_done_is_told_so() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False))
    schedule.replan({0: -1}, 0.0)
    schedule.attach(asks(1, None), 0.0)
    assert schedule.attach(asks(2, None), 1.0) == []
    text = "every simulation is running or done"
    assert schedule.finished(0, 1.1) == [NoneLeft(token=2, text=text, busy=False)]


def test_an_attached_simulation_without_progress_waits_for_another_client() -> None:
    schedule = SimulationSchedule(ScheduleLimits(starts_jobs=False, timeout_s=60))
    schedule.replan({0: -1}, 0.0)
    schedule.attach(asks(1, None), 0.0)
    assert schedule.tick(60.0) == [
        Failed(simulation=0, attempt=0, reason="sent no new time step for 60 s (simulation.timeout_s)")
    ]
    assert schedule.attach(asks(2, None), 61.0) == [Attached(token=2, simulation=0, attempt=1)]


def test_stop_cancels_what_runs_and_starts_nothing_more() -> None:
    schedule = running(4, max_running=2)
    assert schedule.stop(1.0) == [Cancel(simulation=0, attempt=0), Cancel(simulation=1, attempt=0)]
    assert schedule.job_ended(0, 0, 143, "", 2.0) == []
    assert not schedule.done
    assert schedule.job_ended(1, 0, 143, "", 2.0) == []
    assert schedule.done
    assert schedule.attach(asks(1, None), 3.0) == [NoneLeft(token=1, text="the study has ended", busy=False)]


def test_a_schedule_that_stops_by_itself_is_done_only_when_the_server_has_said_stop() -> None:
    schedule = running(1, retries=0, on_failure="stop")
    assert any(isinstance(action, TooMany) for action in fail(schedule, 0, 0, 1.0))
    assert not schedule.done
    schedule.stop(3.0)
    assert schedule.done


def test_a_study_that_is_to_finish_starts_nothing_and_lets_go_of_what_waits() -> None:
    schedule = after_the_first_step(running(4, max_running=2))
    assert schedule.finish("enough", 1.0) == [Dropped(simulations=(2, 3), reason="enough")]
    assert schedule.finish("enough", 1.0) == []
    assert schedule.state(0) is ScheduledState.RUNNING
    schedule.finished(0, 2.0)
    assert schedule.job_ended(0, 0, 0, "", 2.0) == []


def test_an_attempt_that_fails_while_a_study_finishes_is_not_repeated() -> None:
    schedule = after_the_first_step(running(1, retries=2))
    schedule.finish("enough", 1.0)
    failure, drop = fail(schedule, 0, 0, 2.0)
    assert isinstance(failure, Failed)
    assert drop == Dropped(simulations=(0,), reason="enough")


def test_a_study_that_finishes_starts_nothing_for_a_new_server_either() -> None:
    schedule = after_the_first_step(running(3, max_running=1))
    schedule.finish("enough", 1.0)
    schedule.pause()
    schedule.job_ended(0, 0, 1, "crashed", 2.0)
    # The new server continues from a checkpoint in which all of them were still to come.
    assert schedule.replan({0: 0, 1: -1, 2: -1}, 3.0) == [Dropped(simulations=(0, 1, 2), reason="enough")]


def test_a_client_that_attaches_while_a_study_finishes_gets_nothing() -> None:
    schedule = running(2, starts_jobs=False)
    schedule.finish("enough", 1.0)
    (answer,) = schedule.attach(asks(7, None), 2.0)
    assert isinstance(answer, NoneLeft)
    assert not answer.busy
