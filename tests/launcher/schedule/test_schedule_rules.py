"""Whatever happens in whatever order, the schedule keeps its promises."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import Action, Cancel, Continue, ScheduledState, Submit
from stream_server.messages.launcher_link import Attached, AttachRequest, Failed, FailedLater, GaveUp, NoneLeft, TooMany
from tests.support.examples import examples


class ScheduleRules(RuleBasedStateMachine):
    """A short model of the world: which jobs run, which clients are attached, and what is settled for good."""

    @initialize(
        num=st.integers(1, 6),
        max_running=st.integers(1, 4),
        shared=st.sampled_from(
            [{}, {"per_job": 2}, {"per_job": 3}, {"per_worker": 2}, {"per_worker": 3}, {"per_worker": 100}]
        ),
        max_attached=st.integers(0, 2),
        retries=st.integers(0, 2),
        on_failure=st.sampled_from(["give_up", "redraw", "stop"]),
        max_failed=st.sampled_from([0.0, 0.3, 1.0]),
        starts_jobs=st.booleans(),
    )
    def begin(self, num: int, max_running: int, shared: dict[str, int], **limits: object) -> None:
        self.limits = ScheduleLimits(
            timeout_s=60.0,
            max_running=max(max_running, shared.get("per_job", 1)),
            **shared,
            **limits,  # type: ignore[arg-type]
        )
        self.are_workers = self.limits.per_worker > 1
        self.schedule = SimulationSchedule(self.limits)
        self.now = 0.0
        self.next_id = num
        self.attempts = dict.fromkeys(range(num), -1)
        self.failures = dict.fromkeys(range(num), 0)
        self.jobs: dict[int, int] = {}
        self.job_members: dict[int, tuple[int, ...]] = {}
        self.cancelled: set[int] = set()
        self.attached: set[int] = set()
        self.terminal: set[int] = set()
        self.over: set[int] = set()
        self.came: set[int] = set()
        self.stopped = self.told_to_stop = False
        self.redraws = 0
        self.away = False
        self.carry_out(self.schedule.replan(dict.fromkeys(range(num), -1), self.now))

    def begun(self, simulation: int, attempt: int) -> None:
        """An attempt begins, or the client that has it has asked again."""
        assert not self.stopped
        assert not self.away
        assert simulation not in self.terminal
        assert simulation not in self.jobs
        if simulation not in self.attached:
            assert attempt == self.attempts[simulation] + 1
        self.attempts[simulation] = attempt

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Submit(attempts=attempts):
                    for simulation, attempt in attempts:
                        assert simulation not in self.attached
                        self.begun(simulation, attempt)
                        self.jobs[simulation] = attempt
                        self.over.discard(simulation)
                        self.came.discard(simulation)
                    group = tuple(simulation for simulation, _ in attempts)
                    assert len(group) <= max(self.limits.per_job, self.limits.per_worker)
                    assert len(group) == 1 or self.are_workers or all(self.attempts[it] == 0 for it in group)
                    self.job_members |= dict.fromkeys(group, group)
                case Attached(simulation=simulation, attempt=attempt):
                    self.begun(simulation, attempt)
                    self.attached.add(simulation)
                case Continue(simulation=simulation, attempt=attempt, attached=attached):
                    assert attempt == self.attempts[simulation]
                    assert attached or simulation in self.jobs
                    if attached:
                        self.attached.add(simulation)
                    assert simulation not in self.cancelled
                case Cancel(simulation=simulation, attempt=attempt):
                    assert self.jobs[simulation] == attempt
                    assert simulation not in self.cancelled
                    self.cancelled |= set(self.job_members[simulation])
                case Failed(simulation=simulation, attempt=attempt, excuse=excuse):
                    assert simulation not in self.jobs
                    assert simulation not in self.terminal
                    assert attempt == self.attempts[simulation]
                    self.attached.discard(simulation)
                    self.failures[simulation] += not excuse
                    assert not self.away
                case FailedLater(simulation=simulation, attempt=attempt):
                    assert simulation in self.terminal
                    assert simulation not in self.jobs
                    assert attempt == self.attempts[simulation]
                    assert not self.stopped
                case GaveUp(simulation=simulation, attempts=attempts, redraw=redraw):
                    assert attempts == self.attempts[simulation] + 1
                    assert self.failures[simulation] == self.limits.retries + 1
                    self.terminal.add(simulation)
                    self.redraws += redraw
                case FailedLater(simulation=simulation, attempt=attempt):
                    assert simulation in self.terminal
                    assert attempt == self.attempts[simulation]
                case TooMany():
                    assert not self.stopped
                    self.stopped = True
                case NoneLeft():
                    pass
                case _:
                    raise AssertionError(f"an action without a rule here: {action}")

    @rule()
    def the_server_is_lost(self) -> None:
        self.away = True
        self.schedule.pause()

    @precondition(lambda self: self.away)
    @rule(data=st.data(), new_incarnation=st.booleans())
    def a_server_comes(self, data: st.DataObject, new_incarnation: bool) -> None:
        """It may have lost what was finished, and have finished what we do not know of."""
        planned = data.draw(st.lists(st.sampled_from(sorted(self.attempts)), unique=True))
        self.away = self.stopped = self.told_to_stop = False
        self.workers_have_moved_on(planned)
        self.terminal = {it for it in self.attempts if it not in planned}
        self.attached &= set(planned)
        self.carry_out(self.schedule.replan(dict.fromkeys(planned, -1), self.now, new_incarnation=new_incarnation))

    def workers_have_moved_on(self, planned: list[int]) -> None:
        """Take simulations that the server has lost out of the job of a worker that was seen to go on with others."""
        spent = self.terminal | self.over | (set(self.attempts) - set(planned))
        lost = {it for it in self.jobs if it in spent and it in planned and it not in self.cancelled}
        behind = {it for it in lost if set(self.after(it)) & (spent | self.came)}
        self.over |= lost - behind
        self.came -= set(planned)
        for simulation in behind:
            self.leave_job(simulation)

    def after(self, simulation: int) -> tuple[int, ...]:
        """The simulations that its worker has to run after it."""
        group = self.job_members[simulation] if self.are_workers else (simulation,)
        return tuple(it for it in group[group.index(simulation) + 1 :] if it in self.jobs)

    def comes(self, simulation: int) -> None:
        """Something has come of a simulation: its worker is at it, or after it."""
        if simulation in self.jobs and simulation not in self.cancelled:
            for lost in [it for it in self.over & self.jobs.keys() if simulation in self.after(it)]:
                self.leave_job(lost)

    def leave_job(self, simulation: int) -> None:
        group = tuple(it for it in self.job_members[simulation] if it != simulation)
        self.job_members |= dict.fromkeys(group, group)
        del self.jobs[simulation]

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        for simulation in data.draw(st.permutations(self.job_members[data.draw(st.sampled_from(sorted(self.jobs)))])):
            exit_code = data.draw(st.sampled_from([0, 1, None]))
            excuse = data.draw(st.sampled_from(["", "another one failed"]))
            self.end_of_job(simulation, exit_code, excuse)

    def end_of_job(self, simulation: int, exit_code: int | None, excuse: str = "") -> None:
        attempt = self.jobs.pop(simulation)
        self.cancelled.discard(simulation)
        self.carry_out(self.schedule.job_ended(simulation, attempt, exit_code, "ended", self.now, excuse=excuse))

    @precondition(lambda self: not self.away)
    @rule(data=st.data(), received=st.integers(0, 5), blocked=st.booleans())
    def steps_come(self, data: st.DataObject, received: int, blocked: bool) -> None:
        simulation = data.draw(st.sampled_from(sorted(self.attempts)))
        if received and simulation not in self.terminal:
            self.comes(simulation)
            self.came.add(simulation)
        self.carry_out(self.schedule.progress(simulation, self.attempts[simulation], received, blocked, self.now))

    @precondition(lambda self: not self.away)
    @rule(data=st.data())
    def a_simulation_is_settled(self, data: st.DataObject) -> None:
        simulation = data.draw(st.sampled_from(sorted(self.attempts)))
        settle = data.draw(st.sampled_from([self.schedule.finished, self.schedule.invalid]))
        if simulation not in self.terminal:
            self.comes(simulation)
        self.attached.discard(simulation)
        self.terminal.add(simulation)
        self.carry_out(settle(simulation, self.now))

    @precondition(lambda self: not self.away)
    @rule(data=st.data(), token=st.integers(0, 99))
    def a_client_attaches(self, data: st.DataObject, token: int) -> None:
        simulation = data.draw(st.none() | st.integers(0, self.next_id))
        self.carry_out(self.schedule.attach(AttachRequest(token=token, simulation=simulation), self.now))

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.schedule.tick(self.now))

    @precondition(lambda self: self.redraws and not self.away)
    @rule()
    def a_redraw_comes(self) -> None:
        self.redraws -= 1
        simulation, self.next_id = self.next_id, self.next_id + 1
        self.attempts[simulation], self.failures[simulation] = -1, 0
        self.carry_out(self.schedule.add(simulation, self.now))

    @rule()
    def the_study_ends(self) -> None:
        self.stopped = self.told_to_stop = True
        self.attached.clear()
        self.carry_out(self.schedule.stop(self.now))
        assert set(self.jobs) == self.cancelled

    @invariant()
    def the_caps_hold(self) -> None:
        if hasattr(self, "schedule"):
            num_places = len({self.job_members[it] for it in self.jobs}) if self.are_workers else len(self.jobs)
            assert num_places <= self.limits.max_running * self.limits.starts_jobs
            assert len(self.attached) <= self.limits.max_attached
            num_unconfirmed = sum(map(self.schedule.is_unconfirmed, self.attempts))
            num_running = self.schedule.counts[ScheduledState.RUNNING] - num_unconfirmed
            assert num_running <= len(self.jobs) + len(self.attached) + self.stopped * 99
            assert self.schedule.done == (self.told_to_stop and not self.jobs)

    def teardown(self) -> None:
        """From wherever it got to, a study whose simulations run well from now on comes to its end."""
        if not hasattr(self, "schedule") or not self.limits.starts_jobs:
            return
        if self.away and not self.told_to_stop:
            planned = [it for it in self.attempts if it not in self.terminal]
            self.away = self.stopped = False
            self.carry_out(self.schedule.replan(dict.fromkeys(planned, -1), self.now))
        for _ in range(100):
            self.all_that_runs_is_settled_well()
            self.time_passes(61.0)
        assert not self.jobs
        assert self.stopped or set(self.attempts) == self.terminal

    def all_that_runs_is_settled_well(self) -> None:
        running = sorted(set(self.attached) | set(self.jobs))
        for simulation in running:
            if simulation not in self.terminal:
                self.comes(simulation)
            self.attached.discard(simulation)
            self.terminal.add(simulation)
            self.carry_out(self.schedule.finished(simulation, self.now))
        for simulation in running:
            if simulation in self.jobs:
                self.end_of_job(simulation, 0)


ScheduleRules.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestScheduleRules = ScheduleRules.TestCase
