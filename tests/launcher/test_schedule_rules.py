"""Whatever happens in whatever order, the schedule keeps its promises."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.launcher.actions import Action, Cancel, Fail, Give, GiveUp, StopStudy, Submit
from stream_server.launcher.schedule import Limits, Schedule


class ScheduleRules(RuleBasedStateMachine):
    """A short model of the world: which jobs run, which clients are attached, and what is settled for good."""

    @initialize(
        num=st.integers(1, 6),
        max_running=st.integers(1, 3),
        max_attached=st.integers(0, 2),
        retries=st.integers(0, 2),
        on_failure=st.sampled_from(["give_up", "redraw", "stop"]),
        max_failed=st.sampled_from([0.0, 0.3, 1.0]),
        starts_jobs=st.booleans(),
    )
    def begin(self, num: int, **limits: object) -> None:
        self.limits = Limits(timeout_s=60.0, **limits)  # type: ignore[arg-type]
        self.schedule = Schedule(self.limits)
        self.now = 0.0
        self.next_id = num
        self.attempts = dict.fromkeys(range(num), -1)
        self.failures = dict.fromkeys(range(num), 0)
        self.jobs: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.attached: set[int] = set()
        self.terminal: set[int] = set()
        self.stopped = self.told_to_stop = False
        self.redraws = 0
        self.carry_out(self.schedule.plan(range(num), self.now))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Submit(simulation=simulation, attempt=attempt) | Give(simulation=simulation, attempt=attempt):
                    assert not self.stopped
                    assert simulation not in self.terminal
                    assert simulation not in self.jobs
                    if isinstance(action, Submit):
                        assert simulation not in self.attached
                        self.jobs[simulation] = attempt
                    if simulation not in self.attached:
                        assert attempt == self.attempts[simulation] + 1
                    self.attempts[simulation] = attempt
                    if isinstance(action, Give):
                        self.attached.add(simulation)
                case Cancel(simulation=simulation, attempt=attempt):
                    assert self.jobs[simulation] == attempt
                    assert simulation not in self.cancelled
                    self.cancelled.add(simulation)
                case Fail(simulation=simulation, attempt=attempt):
                    assert simulation not in self.jobs
                    assert simulation not in self.terminal
                    assert attempt == self.attempts[simulation]
                    self.attached.discard(simulation)
                    self.failures[simulation] += 1
                case GiveUp(simulation=simulation, attempts=attempts, redraw=redraw):
                    assert attempts == self.failures[simulation] == self.limits.retries + 1
                    self.terminal.add(simulation)
                    self.redraws += redraw
                case StopStudy():
                    assert not self.stopped
                    self.stopped = True

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), exit_code=st.sampled_from([0, 1, None]))
    def a_job_ends(self, data: st.DataObject, exit_code: int | None) -> None:
        simulation = data.draw(st.sampled_from(sorted(self.jobs)))
        attempt = self.jobs.pop(simulation)
        self.cancelled.discard(simulation)
        self.carry_out(self.schedule.job_ended(simulation, attempt, exit_code, "ended", self.now))

    @rule(data=st.data(), received=st.integers(0, 5), blocked=st.booleans())
    def steps_come(self, data: st.DataObject, received: int, blocked: bool) -> None:
        simulation = data.draw(st.sampled_from(sorted(self.attempts)))
        self.carry_out(self.schedule.progress(simulation, self.attempts[simulation], received, blocked, self.now))

    @rule(data=st.data())
    def a_simulation_is_settled(self, data: st.DataObject) -> None:
        simulation = data.draw(st.sampled_from(sorted(self.attempts)))
        settle = data.draw(st.sampled_from([self.schedule.finished, self.schedule.invalid]))
        self.attached.discard(simulation)
        self.terminal.add(simulation)
        self.carry_out(settle(simulation, self.now))

    @rule(data=st.data(), token=st.integers(0, 99))
    def a_client_attaches(self, data: st.DataObject, token: int) -> None:
        simulation = data.draw(st.none() | st.integers(0, self.next_id))
        self.carry_out(self.schedule.attach(token, simulation, self.now))

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.schedule.tick(self.now))

    @precondition(lambda self: self.redraws)
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
            assert len(self.jobs) <= self.limits.max_running * self.limits.starts_jobs
            assert len(self.attached) <= self.limits.max_attached
            assert self.schedule.done == (self.told_to_stop and not self.jobs)

    def teardown(self) -> None:
        """From wherever it got to, a study whose simulations run well from now on comes to its end."""
        if not hasattr(self, "schedule") or not self.limits.starts_jobs:
            return
        for _ in range(100):
            for simulation in sorted(set(self.attached) | set(self.jobs)):
                self.a_simulation_is_settled_well(simulation)
            self.time_passes(61.0)
        assert not self.jobs
        assert self.stopped or set(self.attempts) == self.terminal

    def a_simulation_is_settled_well(self, simulation: int) -> None:
        self.attached.discard(simulation)
        self.terminal.add(simulation)
        self.carry_out(self.schedule.finished(simulation, self.now))
        if simulation in self.jobs:
            self.cancelled.discard(simulation)
            self.carry_out(self.schedule.job_ended(simulation, self.jobs.pop(simulation), 0, "", self.now))


ScheduleRules.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestScheduleRules = ScheduleRules.TestCase
