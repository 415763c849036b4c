"""Workers, as the schedule sees them: simulations that one process computes one after another."""

from pathlib import Path

import pytest

from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import BEHIND, CONFIRM_FAILURE_S, CONFIRM_S, num_for_worker
from stream_server.launcher.schedule.simulation import (
    NOT_BEGUN,
    RESTARTED,
    Action,
    Cancel,
    Continue,
    ScheduledState,
    Submit,
)
from stream_server.launcher.simulations.attempt_jobs import OUT_OF_TIME, ends
from stream_server.messages.launcher_link import Failed, FailedLater


def workers(num: int, **limits: object) -> tuple[SimulationSchedule, list[Action]]:
    """A schedule at time 0, which has its plan."""
    limits = {"per_worker": 4, "max_running": 1, "max_failed": 100, "timeout_s": 60.0, **limits}
    schedule = SimulationSchedule(ScheduleLimits(**limits))  # type: ignore[arg-type]
    return schedule, schedule.replan(dict.fromkeys(range(num), -1), 0.0)


def lists(actions: list[Action]) -> list[tuple[int, ...]]:
    """The simulations of each worker that is to be started."""
    return [tuple(simulation for simulation, _ in it.attempts) for it in actions if isinstance(it, Submit)]


def die(schedule: SimulationSchedule, *simulations: int, exit_code: int = 137, now: float = 10.0) -> list[Action]:
    """The worker of these ends, and the server has no other word."""
    actions = [it for each in simulations for it in schedule.job_ended(each, 0, exit_code, "ended", now)]
    return [*actions, *schedule.tick(now + (CONFIRM_S if exit_code == 0 else CONFIRM_FAILURE_S))]


def failures(actions: list[Action]) -> dict[int, str]:
    return {it.simulation: it.excuse for it in actions if isinstance(it, Failed)}


def test_workers_count_as_one_simulation_each_and_get_fewer_towards_the_end() -> None:
    schedule, actions = workers(9, max_running=2, per_worker=3)
    assert lists(actions) == [(0, 1, 2), (3, 4)]
    for simulation in (0, 1):
        assert schedule.finished(simulation, 1.0) == []
    schedule.finished(2, 1.0)
    assert lists(schedule.job_ended(2, 0, 0, "ended", 1.0)) == []
    schedule.job_ended(0, 0, 0, "ended", 1.0)
    assert lists(schedule.job_ended(1, 0, 0, "ended", 1.0)) == [(5,)]


def test_no_worker_gets_more_than_half_of_its_share() -> None:
    assert [num_for_worker(num, most=100, max_running=4) for num in (2000, 80, 9, 1)] == [100, 10, 2, 1]


def test_the_simulation_that_a_dead_worker_was_at_has_failed_and_those_after_it_share_the_next_one() -> None:
    schedule, actions = workers(8)
    assert lists(actions) == [(0, 1, 2, 3)]
    schedule.finished(0, 1.0)
    schedule.progress(1, 0, 5, False, 2.0)
    ended = die(schedule, 0, 1, 2, 3)
    assert failures(ended) == {1: "", 2: NOT_BEGUN, 3: NOT_BEGUN}
    assert lists(ended) == [(1,)]
    schedule.finished(1, 20.0)
    assert lists(schedule.job_ended(1, 1, 0, "ended", 20.0)) == [(2, 3)]


def test_the_first_of_a_list_has_failed_when_its_worker_ends_without_a_time_step() -> None:
    schedule, _ = workers(8)
    schedule.anything_came = True
    assert failures(die(schedule, 0, 1, 2, 3)) == {0: "", 1: NOT_BEGUN, 2: NOT_BEGUN, 3: NOT_BEGUN}


def test_what_a_worker_leaves_of_its_own_accord_is_tried_alone() -> None:
    schedule, _ = workers(8)
    schedule.finished(0, 1.0)
    ended = die(schedule, 0, 1, 2, 3, exit_code=0)
    assert failures(ended) == dict.fromkeys((1, 2, 3), NOT_BEGUN)
    reasons = {it.reason.partition(":")[0] for it in ended if isinstance(it, Failed)}
    assert reasons == {"ended without having taken this simulation"}
    assert lists(ended) == [(1,)]


def test_the_clock_of_a_simulation_begins_when_the_one_before_it_is_done() -> None:
    schedule, _ = workers(8)
    schedule.progress(0, 0, 1, False, 50.0)
    assert schedule.tick(100.0) == []
    schedule.finished(0, 100.0)
    assert schedule.wake_at == 160.0
    (cancel,) = schedule.tick(160.0)
    assert cancel == Cancel(simulation=1, attempt=0)
    ended = [it for each in range(4) for it in schedule.job_ended(each, 0, None, "ended", 161.0)]
    assert failures(ended)[1] == ""
    assert all(failures(ended)[it] for it in (2, 3))
    assert schedule.state(0) is ScheduledState.FINISHED


def test_the_attempts_that_a_worker_comes_to_follow_each_other() -> None:
    schedule, _ = workers(8)
    assert schedule.jobs.attempts_of_worker(0) == ((0, 0), (1, 0))
    assert schedule.jobs.attempts_of_worker(3) == ((3, 0), None)
    assert schedule.jobs.attempts_of_worker(4) is None
    alone, _ = workers(8, per_worker=1)
    assert alone.jobs.attempts_of_worker(0) is None


def test_a_worker_that_does_not_end_after_its_last_simulation_is_cancelled() -> None:
    schedule, _ = workers(8)
    for simulation in range(4):
        schedule.finished(simulation, 5.0)
    assert schedule.wake_at == 65.0
    assert any(isinstance(it, Cancel) for it in schedule.tick(65.0))


def test_a_worker_that_dies_after_its_last_simulation_is_told_once() -> None:
    schedule, _ = workers(8)
    for simulation in range(4):
        schedule.finished(simulation, 1.0)
    ended = [it for each in range(4) for it in schedule.job_ended(each, 0, 139, "was killed by SIGSEGV", 2.0)]
    assert [it for it in ended if isinstance(it, FailedLater)] == [
        FailedLater(simulation=3, attempt=0, reason="was killed by SIGSEGV")
    ]


def test_the_simulations_that_a_dead_worker_had_finished_have_not_failed_later() -> None:
    schedule, _ = workers(8)
    schedule.finished(0, 1.0)
    assert not [it for it in die(schedule, 0, 1, 2, 3) if isinstance(it, FailedLater)]


def test_a_worker_has_not_come_to_what_is_behind_another_one_on_its_list() -> None:
    schedule, _ = workers(8)
    assert [schedule.jobs.what_comes_before(it) for it in range(4)] == [None, BEHIND, BEHIND, BEHIND]
    schedule.finished(0, 1.0)
    assert [schedule.jobs.what_comes_before(it) for it in range(1, 4)] == [None, BEHIND, BEHIND]


def test_the_time_limit_of_a_worker_counts_against_the_first_of_its_list_alone() -> None:
    folders = {(simulation, 0): Path(str(simulation)) for simulation in range(3)}
    end = JobStatus(state=JobState.ENDED, reason="ended after its walltime of 10 min", is_out_of_time=True)
    excuses = [it.excuse for it in ends(folders, end, log=Path("log"), num_ranks=1, are_workers=True)]
    assert excuses == ["", OUT_OF_TIME, OUT_OF_TIME]


def test_a_simulation_that_found_its_worker_out_of_time_is_tried_alone_and_counted_then() -> None:
    schedule, _ = workers(8, retries=0)
    schedule.finished(0, 1.0)
    schedule.progress(1, 0, 5, False, 2.0)
    ended = [
        it
        for each in range(4)
        for it in schedule.job_ended(each, 0, None, "ended", 9.0, excuse=OUT_OF_TIME if each else "")
    ]
    ended += schedule.tick(9.0 + CONFIRM_FAILURE_S)
    assert failures(ended) == dict.fromkeys((1, 2, 3), OUT_OF_TIME)
    assert lists(ended) == [(1,)]
    late = [*schedule.job_ended(1, 1, None, "ended", 20.0), *schedule.tick(20.0 + CONFIRM_FAILURE_S)]
    assert failures(late) == {1: ""}
    assert lists(late) == [(2, 3)]


def test_what_a_new_server_has_lost_does_not_wait_for_the_whole_list_of_its_worker() -> None:
    schedule, actions = workers(16, max_running=2)
    assert lists(actions) == [(0, 1, 2, 3), (4, 5, 6)]
    for simulation in (0, 1, 4, 5, 6):
        schedule.finished(simulation, 1.0)
    schedule.pause()
    schedule.replan(dict.fromkeys((0, 1, 2, 3, *range(7, 16)), 0), 2.0)
    # The first worker is at 2 and 3 still.
    schedule.progress(2, 0, 1, False, 2.5)
    ended = [it for each in (4, 5, 6) for it in schedule.job_ended(each, 0, 0, "ended", 3.0)]
    assert lists(ended) == [(0, 1)]
    schedule.finished(2, 4.0)
    schedule.finished(3, 4.0)
    ended = [it for each in (2, 3) for it in schedule.job_ended(each, 0, 0, "ended", 5.0)]
    assert lists(ended) == [(7, 8, 9)]
    assert not failures(ended)


@pytest.mark.parametrize("sign", ["a time step", "the end"])
def test_a_worker_goes_on_with_what_a_lost_server_had_until_something_comes_of_the_next(sign: str) -> None:
    schedule, _ = workers(4, max_running=1)
    schedule.finished(0, 1.0)
    schedule.pause()
    actions = schedule.replan({0: -1, 1: -1, 2: -1, 3: -1}, 2.0)
    # Its client may not have heard that the last server had all.
    assert [it.simulation for it in actions if isinstance(it, Continue)] == [0, 1]
    assert schedule.state(0) is ScheduledState.RUNNING
    if sign == "a time step":
        schedule.progress(1, 0, 1, False, 3.0)
    else:
        schedule.finished(1, 3.0)
    assert schedule.state(0) is ScheduledState.WAITING


def test_what_a_lost_server_had_of_a_worker_that_dies_is_computed_again() -> None:
    schedule, _ = workers(4, max_running=1)
    schedule.finished(0, 1.0)
    schedule.pause()
    schedule.replan({0: -1, 1: -1, 2: -1, 3: -1}, 2.0)
    died = die(schedule, 0, 1)
    assert failures(died) == dict.fromkeys((0, 1), RESTARTED)
    assert lists(died) == [(0,)]


def test_a_worker_that_sends_a_lost_server_s_simulation_once_more_finishes_it() -> None:
    schedule, _ = workers(4, max_running=1)
    schedule.finished(0, 1.0)
    schedule.pause()
    schedule.replan({0: -1, 1: -1, 2: -1, 3: -1}, 2.0)
    schedule.progress(0, 0, 4, False, 3.0)
    schedule.finished(0, 3.0)
    assert schedule.state(0) is ScheduledState.FINISHED
    assert schedule.wake_at == 3.0 + schedule.limits.timeout_s
    schedule.progress(1, 0, 1, False, 4.0)
    assert schedule.state(0) is ScheduledState.FINISHED
