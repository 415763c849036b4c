"""The schedule looks at few of its simulations, and knows what a look at all of them would tell."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import Action, ScheduledAttempt, ScheduledPhase, Submit
from stream_server.messages.launcher_link import AttachRequest
from tests.support.examples import examples

NUM = 9

simulations = st.integers(0, NUM - 1)
events = st.one_of(
    st.tuples(st.just("progress"), simulations, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("finished"), simulations),
    st.tuples(st.just("invalid"), simulations),
    st.tuples(st.just("ended"), simulations, st.sampled_from([0, 1, None]), st.integers(1, NUM)),
    st.tuples(st.just("rank ended"), simulations, st.sampled_from(["", "a rank failed"]), st.booleans()),
    st.tuples(st.just("not begun"), st.integers(1, NUM)),
    st.tuples(st.just("suspended"), st.sampled_from([0.5, 30.0])),
    st.tuples(st.just("attach"), st.integers(0, 99)),
    st.tuples(st.just("tick"), st.sampled_from([0.5, 2.0, 11.0, 61.0])),
    st.tuples(st.just("restarted"), st.sets(simulations), st.booleans()),
    st.tuples(st.just("stop")),
)


class World:
    """A schedule, and the jobs that it has started."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self.schedule = SimulationSchedule(limits)
        self.limits = limits
        self.now = 0.0
        self.jobs: list[list[tuple[int, int]]] = []
        self.note(self.schedule.replan(dict.fromkeys(range(NUM), -1), 0.0))

    def note(self, actions: list[Action]) -> None:
        for it in actions:
            if isinstance(it, Submit):
                self.jobs.append([*it.attempts])

    def happen(self, event: Any) -> None:
        schedule = self.schedule
        match event:
            case ("progress", simulation, received, blocked):
                self.note(schedule.progress(simulation, newest(schedule, simulation), received, blocked, self.now))
            case ("finished", simulation):
                self.note(schedule.finished(simulation, self.now))
            case ("invalid", simulation):
                self.note(schedule.invalid(simulation, self.now))
            case ("ended", position, exit_code, num) if self.jobs:
                # Some of them could not even be prepared, or the launcher looks in the middle.
                job = self.jobs[position % len(self.jobs)]
                for simulation, attempt in [job.pop(0) for _ in range(min(num, len(job)))]:
                    # What a server has lost leaves a worker that has moved on.
                    if schedule.runs(simulation, attempt):
                        self.note(schedule.job_ended(simulation, attempt, exit_code, "ended", self.now))
                self.jobs = [it for it in self.jobs if it]
            case ("rank ended", simulation, at_fault, over):
                schedule.ranks_ended(simulation, newest(schedule, simulation), at_fault, self.now, over=over)
            case ("not begun", position) if self.jobs:
                for simulation, attempt in self.jobs.pop(position % len(self.jobs)):
                    if schedule.runs(simulation, attempt):
                        schedule.postpone(simulation, self.now)
            case ("suspended", seconds):
                self.now += seconds
                schedule.was_suspended(seconds, self.now)
            case ("attach", token):
                self.note(schedule.attach(AttachRequest(token=token, simulation=None), self.now))
            case ("tick", seconds):
                self.now += seconds
                self.note(schedule.tick(self.now))
            case ("restarted", lost, new_incarnation):
                schedule.pause()
                planned = [i for i, it in schedule._simulations.items() if not it.state.terminal or i in lost]
                plan = dict.fromkeys(planned, -1)
                self.note(schedule.replan(plan, self.now, new_incarnation=new_incarnation))
            case ("stop",):
                self.note(schedule.stop(self.now, 5.0))


def attempt_of(schedule: SimulationSchedule, simulation: int) -> ScheduledAttempt:
    attempt = schedule._simulations[simulation].attempt
    assert attempt is not None
    return attempt


def newest(schedule: SimulationSchedule, simulation: int) -> int:
    return schedule._simulations[simulation].highest


def clocks_of_all(schedule: SimulationSchedule) -> dict[int, float]:
    timed = [] if schedule.away else [it for it in schedule.jobs if not waits(schedule, it)]
    deadlines = {it.simulation: schedule._clock._deadline(it) for it in timed}
    return {simulation: deadline for simulation, deadline in deadlines.items() if deadline is not None}


def waits(schedule: SimulationSchedule, it: ScheduledAttempt) -> bool:
    if it.is_spent:
        return not all(mate.is_spent for mate in schedule.jobs.members(it))
    return schedule.jobs.is_behind(it)


@pytest.mark.parametrize("sharing", [{"per_worker": 4}, {"per_job": 3}, {}], ids=str)
@settings(max_examples=examples(150), deadline=None)
@given(happened=st.lists(events, max_size=40))
def test_the_first_clock_is_the_one_that_a_look_at_all_simulations_finds(
    sharing: dict[str, int], happened: list[Any]
) -> None:
    limits = ScheduleLimits(max_running=3, max_attached=2, max_failed=100, timeout_s=60.0, **sharing)
    world = World(limits)
    for event in happened:
        world.happen(event)
        schedule = world.schedule
        live = list(schedule.jobs)
        if not schedule.stopped:
            assert schedule._clock.earliest() == min(clocks_of_all(schedule).values(), default=math.inf)
        assert list(schedule.jobs.attached.values()) == [it for it in live if it.job is None]
        with_job = [it for it in live if it.job is not None]
        num = len({id(it.job) for it in with_job}) if limits.per_worker > 1 else len(with_job)
        assert schedule.jobs.num == num
        for it in live:
            assert schedule.shares_a_job(it.simulation) == any(
                mate.job is it.job for mate in with_job if mate is not it
            )


def test_the_end_of_a_simulation_makes_the_schedule_look_at_few_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = SimulationSchedule(ScheduleLimits(max_running=1, per_worker=100))
    schedule.replan(dict.fromkeys(range(200), -1), 0.0)
    num_looks = 0

    def count(it: ScheduledAttempt) -> bool:
        nonlocal num_looks
        num_looks += 1
        return it.phase is ScheduledPhase.SPENT

    monkeypatch.setattr(ScheduledAttempt, "is_spent", property(count))
    for simulation in range(99):
        schedule.progress(simulation, 0, 5, False, simulation)
        schedule.finished(simulation, simulation)
        assert schedule.wake_at == simulation + schedule.limits.timeout_s
    assert num_looks < 1_000


def test_a_clock_that_stood_still_for_long_runs_again_under_a_new_plan() -> None:
    schedule = SimulationSchedule(ScheduleLimits(timeout_s=60.0))
    schedule.replan({0: -1}, 0.0)
    schedule.progress(0, 0, 0, True, 1.0)
    schedule.tick(100.0)
    assert schedule.wake_at == math.inf
    schedule.pause()
    schedule.replan({0: 0}, 200.0)
    assert schedule.wake_at == 260.0


def test_the_clock_of_the_next_one_runs_when_the_ranks_of_the_one_before_have_ended() -> None:
    schedule = SimulationSchedule(ScheduleLimits(timeout_s=60.0, per_worker=2))
    schedule.replan({0: -1, 1: -1, 2: -1, 3: -1}, 0.0)
    assert [it.simulation for it in schedule.jobs.members(attempt_of(schedule, 0))] == [0, 1]
    schedule.progress(0, 0, 1, False, 50.0)
    schedule.tick(100.0)
    assert schedule.ranks_ended(0, 0, "", 105.0, over=True)
    assert schedule.wake_at == 165.0
