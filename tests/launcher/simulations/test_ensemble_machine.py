"""The launcher's own part, from link and journal to jobs, with a real roster at the other end, through any trouble.

The machine is believed because it looks at processes alone: who runs, who was before, and whose fault each end was.
"""

import sys
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stream_server.launcher.backends.backend import Outage
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import POSTPONE_S, SimulationSchedule
from stream_server.launcher.schedule.shared_jobs import CONFIRM_S
from stream_server.launcher.schedule.simulation import RESTARTED
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import Ensemble
from stream_server.messages import operator
from stream_server.messages.launcher_link import Failed, GaveUp
from tests.fakes.one_rank import NUM_STEPS, Checkpoint, OneRank
from tests.launcher.node import (
    KILLED_BY_TERM,
    LauncherKilled,
    Node,
    NodeAttempts,
    NodeBackend,
    NodeJournal,
    NodeLink,
    NodeMpirun,
    Process,
)
from tests.support.examples import examples

ROUND_S = 0.7
TIMEOUT_S = 8.0
MAX_TROUBLES = 8
TROUBLES_BEFORE_FINISH = 4
CALM_ROUNDS = 1500
HANGING_ROUNDS = 15
AFTER = st.integers(0, 4)


class EnsembleMachine(RuleBasedStateMachine):
    """A few simulations of three steps. Before each trouble all goes on as it should for some rounds (`after`)."""

    @initialize(
        num=st.sampled_from([3, 4, 5, 2, 1]),
        max_running=st.integers(1, 4),
        per_job=st.sampled_from([2, 3, 1]),
        retries=st.integers(0, 2),
        redraws=st.booleans(),
        cursed=st.sets(st.integers(0, 4), max_size=2),
        pace=st.sampled_from([8, 8, 1, 2]),
    )
    def begin(
        self, num: int, max_running: int, per_job: int, retries: int, redraws: bool, cursed: set[int], pace: int
    ) -> None:
        self.limits = ScheduleLimits(
            max_running=max(max_running, per_job),
            per_job=per_job,
            retries=retries,
            on_failure="redraw" if redraws else "give_up",
            max_failed=100,
            timeout_s=TIMEOUT_S,
            num_simulations=num,
        )
        self.num = num
        self.cursed, self.pace = cursed, pace
        self.node = Node(max_running=self.limits.max_running, per_job=per_job)
        self.checkpoint: Checkpoint | None = None
        self.incarnation = self.num_troubles = self.num_restarts = self.num_rounds = 0
        self.server_back = self.launcher_back = 0
        self.is_finishing = False
        self.ensemble: Ensemble | None = None
        self.inhabited = self.node.inhabited()
        self.inhabited.__enter__()
        self.start_server()
        self.start_launcher()
        self.go_on(2)

    @property
    def may_go_wrong(self) -> bool:
        return self.num_troubles < MAX_TROUBLES

    def start_server(self) -> None:
        self.incarnation += 1
        self.node.server = OneRank(
            incarnation=self.incarnation, num_simulations=self.num, num_spare=self.num, checkpoint=self.checkpoint
        )
        for process in self.node.alive:
            process.blameless = process.blameless or "it saw a restart"
            process.quiet_since = self.node.now

    def start_launcher(self) -> None:
        node = self.node
        journal = NodeJournal(node)
        past = journal.history
        started = records.LauncherStarted(
            pid=1, boot="b", link="l", supervises=True, resumed=past.launcher is not None and not past.ended_in_order
        )
        attempts = NodeAttempts(node)
        mpirun = NodeMpirun() if self.limits.per_job > 1 else None
        ensemble = Ensemble(
            schedule=SimulationSchedule(self.limits),
            jobs=AttemptJobs(NodeBackend(node), attempts, mpirun, Outage()),  # type: ignore[arg-type]
            server=NodeLink(node),  # type: ignore[arg-type]
            journal=journal,
            keep_finished=True,
        )
        try:
            journal.note(started)
            ensemble.restore(past)
            self.ensemble = ensemble
        except LauncherKilled:
            self.launcher_dies(1)

    def go_on(self, rounds: int) -> None:
        """Let everything go on without further faults; parts that are away come back in time."""
        for _ in range(rounds):
            self.node.now += ROUND_S
            self.num_rounds += 1
            self.servers_turn()
            for process in self.node.alive:
                if (self.num_rounds + process.simulation) % self.pace == 0:
                    self.work(process)
            for job in [it for it in self.node.jobs.values() if it.is_told_to_end and not it.has_ended]:
                job.end(KILLED_BY_TERM)
            self.launchers_turn()
            if self.node.server is not None:
                self.node.server.listen()
                self.judge_what_is_given_up(self.node.server)

    def servers_turn(self) -> None:
        if self.node.server is not None:
            self.node.server.say_here()
        elif self.server_back:
            self.server_back -= 1
        else:
            self.start_server()

    def launchers_turn(self) -> None:
        if self.ensemble is None:
            self.launcher_back -= 1
            if self.launcher_back <= 0:
                self.start_launcher()
            return
        was_finishing, num_before = bool(self.ensemble.schedule.why_finishing), len(self.node.processes)
        num_queued = len(self.ensemble.jobs.queue)
        try:
            self.check_cancels()
        except LauncherKilled:
            self.launcher_dies(1)
        num_begun = len(self.node.processes) - num_before
        assert not was_finishing or num_begun <= num_queued, "a study that finishes starts something"

    def check_cancels(self) -> None:
        """Whoever is cancelled was quiet for so long, or belongs to somebody who was, or to a study that has ended."""
        assert self.ensemble is not None
        told = {id(job) for job in self.node.jobs.values() if job.is_told_to_end}
        try:
            self.ensemble.turn()
        finally:
            for job in self.node.jobs.values():
                if not job.is_told_to_end or id(job) in told or job.has_ended:
                    continue
                late = [it for it in job.processes if self.node.now >= it.quiet_since + TIMEOUT_S]
                server = self.node.server
                assert server is not None, "a simulation is cancelled while there is no server"
                assert late or server.is_over, "a simulation that comes on is cancelled"
                for process in job.processes:
                    if process not in late:
                        process.blameless = process.blameless or "a mate was quiet"

    def work(self, process: Process) -> None:
        """A simulation sends its next step, and ends when it has sent all."""
        server, key = self.node.server, (process.simulation, process.attempt)
        if server is None or process.hangs or not process.alive:
            return
        entry = server.roster.entries.get(process.simulation)
        if entry is None or (entry.phase.terminal and entry.attempt <= process.attempt):
            self.end_well(process)
        elif entry.begun and entry.attempt > process.attempt:
            process.blameless = process.blameless or "a later attempt is there"
            self.node.end_process(process, 1)
        elif server.admits(*key):
            if process.simulation in self.cursed and process.position:
                self.node.end_process(process, 1)
                return
            process.position = min(process.position, server.settled.get(process.simulation, 0))
            process.quiet_since = self.node.now
            server.take_step(*key, process.position)
            process.position += 1
            if process.position == NUM_STEPS:
                self.end_well(process)

    def end_well(self, process: Process) -> None:
        if not process.lingers:
            self.node.end_process(process, 0)

    def judge_what_is_given_up(self, server: OneRank) -> None:
        for simulation, entry in server.roster.entries.items():
            if entry.phase.value != "given_up":
                continue
            failures = [it for it in self.node.processes_of(simulation) if self.is_failure(it)]
            num = len(failures) + self.node.num_unprepared.get(simulation, 0)
            assert num > self.limits.retries, f"simulation {simulation} is given up after {num} failures of its own"
        for simulation, num in self.node.num_counted.items():
            assert num <= self.limits.retries + 1 or self.node.was_full, f"{num} failures of {simulation} were counted"

    def is_failure(self, process: Process) -> bool:
        """An end that may be held against its simulation."""
        return self.node.job_of(process).has_ended and not process.blameless and process.position < NUM_STEPS

    def trouble(self, after: int) -> None:
        self.num_troubles += 1
        self.go_on(after)

    @rule(rounds=st.integers(1, 12))
    def all_is_well(self, rounds: int) -> None:
        self.go_on(rounds)

    @precondition(lambda self: self.may_go_wrong)
    @rule(data=st.data(), after=AFTER, code=st.sampled_from([0, 1, 139]))
    def a_simulation_ends_too_early(self, data: st.DataObject, after: int, code: int) -> None:
        self.trouble(after)
        if self.node.alive:
            self.node.end_process(data.draw(st.sampled_from(self.node.alive)), code)

    @precondition(lambda self: self.may_go_wrong)
    @rule(data=st.data(), after=AFTER)
    def a_job_is_killed_without_a_word(self, data: st.DataObject, after: int) -> None:
        self.trouble(after)
        running = [job for job in self.node.jobs.values() if not job.has_ended]
        if running:
            data.draw(st.sampled_from(running)).end(None)

    @precondition(lambda self: self.may_go_wrong)
    @rule(data=st.data(), after=AFTER, at_its_end=st.booleans(), doors=st.none() | st.integers(10, 60))
    def a_simulation_hangs(self, data: st.DataObject, after: int, at_its_end: bool, doors: int | None) -> None:
        """It is cancelled, while the launcher may be killed; those that share its job are of more interest."""
        self.trouble(after)
        shared = [it for it in self.node.alive if len(self.node.job_of(it).processes) > 1]
        if shared or self.node.alive:
            process = data.draw(st.sampled_from(shared or self.node.alive))
            process.hangs, process.lingers = not at_its_end, at_its_end
            self.node.doors_left = doors
        self.go_on(HANGING_ROUNDS)
        self.node.doors_left = None

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER, doors=st.integers(1, 30), away=st.integers(1, 6))
    def the_launcher_is_killed(self, after: int, doors: int, away: int) -> None:
        self.trouble(after)
        self.node.doors_left = doors
        for _ in range(doors):
            if self.node.doors_left is not None:
                self.go_on(1)
        if self.node.doors_left is not None:
            self.node.doors_left = None
            self.launcher_dies(away)

    def launcher_dies(self, away: int) -> None:
        self.ensemble, self.launcher_back = None, away

    @precondition(lambda self: self.may_go_wrong and self.node.server is not None)
    @rule(after=AFTER, away=st.integers(0, 20))
    def the_server_dies(self, after: int, away: int) -> None:
        self.trouble(after)
        if self.node.server is None or self.node.server.is_over:
            return
        self.node.server, self.server_back = None, away
        self.num_restarts += 1
        if self.ensemble is not None:
            self.ensemble.server_is_gone()

    @precondition(lambda self: self.num_troubles >= TROUBLES_BEFORE_FINISH)
    @rule(after=AFTER)
    def an_operator_lets_the_study_finish(self, after: int) -> None:
        """Whoever dies afterwards: once the launcher has heard of it, nothing is started any more."""
        self.go_on(after)
        if self.node.server is not None:
            self.is_finishing = True
            self.node.server.coordinator.desk.hear(operator.encode(operator.AskStop(finish=True)))

    @rule(after=AFTER)
    def a_checkpoint_is_committed(self, after: int) -> None:
        self.go_on(after)
        if self.node.server is not None:
            self.checkpoint = self.node.server.save()

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER, rounds=st.integers(1, 20))
    def the_disk_is_full_for_a_while(self, after: int, rounds: int) -> None:
        self.trouble(after)
        self.node.disk_is_full = self.node.was_full = True
        self.go_on(rounds)
        self.node.disk_is_full = False

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER, rounds=st.integers(1, 60), only_submit=st.booleans(), starts=st.booleans())
    def the_scheduler_is_away_for_a_while(self, after: int, rounds: int, only_submit: bool, starts: bool) -> None:
        """Its answers are lost, and with them the jobs, unless it `starts` them."""
        self.trouble(after)
        calls = {"submit"} if only_submit else {"submit", "reattach", "query", "cancel"}
        self.node.unanswered = frozenset(calls | ({"start"} if starts else set()))
        self.go_on(rounds)
        self.node.unanswered = frozenset()

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER)
    def the_connection_to_the_server_breaks(self, after: int) -> None:
        self.trouble(after)
        if self.ensemble is not None:
            assert isinstance(self.ensemble.server, NodeLink)
            self.ensemble.server.break_()

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER, simulation=st.integers(0, 5))
    def an_attempt_cannot_be_prepared(self, after: int, simulation: int) -> None:
        self.trouble(after)
        self.node.unpreparable.add(simulation)

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=AFTER, seconds=st.sampled_from([CONFIRM_S, POSTPONE_S, 3 * TIMEOUT_S]))
    def the_launcher_is_stopped_for_a_while(self, after: int, seconds: float) -> None:
        self.trouble(after)
        ensemble, self.ensemble, self.launcher_back = self.ensemble, None, 1000
        self.go_on(int(seconds / ROUND_S))
        self.ensemble, self.launcher_back = ensemble, 1

    def teardown(self) -> None:
        """From wherever it got to, a study without further troubles comes to its end."""
        if not hasattr(self, "node"):
            return
        try:
            if sys.exception() is not None:
                return
            self.node.doors_left = None
            self.node.unpreparable.clear()
            rounds = iter(range(CALM_ROUNDS))
            while not self.has_ended and next(rounds, None) is not None:
                self.go_on(1)
            assert self.has_ended, self.story()
            self.judge_the_end()
        finally:
            self.inhabited.__exit__(None, None, None)

    @property
    def has_ended(self) -> bool:
        server = self.node.server
        return bool(server and server.is_over and self.ensemble and self.ensemble.has_left)

    def judge_the_end(self) -> None:
        assert all(job.has_ended for job in self.node.jobs.values())
        server = self.node.server
        assert server is not None
        states = {it: entry.phase.value for it, entry in server.roster.entries.items()}
        assert server.failed or set(states.values()) <= {"finished", "given_up", *(["stopped"] * self.is_finishing)}
        finished = [it for it, state in states.items() if state == "finished"]
        assert all(server.settled[it] == NUM_STEPS for it in finished)
        highest = History.of(records.decode(self.node.journal)).highest
        for simulation, number in Counter(it.simulation for it in self.node.processes).items():
            assert highest[simulation] >= number - 1
            excused = [it for it in self.node.processes_of(simulation) if it.blameless]
            allowed = self.limits.retries + 1 + len(excused) + self.num_restarts + self.num_troubles
            assert number <= allowed, f"simulation {simulation} ran {number} times"

    def story(self) -> str:
        """The state that keeps the study from its end."""
        server = self.node.server
        entries = None if server is None else {it: entry.phase.value for it, entry in server.roster.entries.items()}
        schedule = None if self.ensemble is None else self.ensemble.schedule.counts
        return f"roster {entries}, schedule {schedule}, processes {self.node.alive}"


TestEnsemble = EnsembleMachine.TestCase
TestEnsemble.settings = settings(max_examples=examples(40), stateful_step_count=15, deadline=None)


def test_an_attempt_that_saw_a_restart_is_excused_though_the_launcher_was_killed_since() -> None:
    started = records.AttemptStarting(simulation=0, attempt=0, folder="/0", public_key=None)
    past = History.of([records.PlanTaken(incarnation=1), started, records.PlanTaken(incarnation=2)])
    assert past.attempts[0].attempt.excuse == RESTARTED


def test_a_simulation_whose_launcher_was_killed_before_it_gave_it_up_is_not_tried_again() -> None:
    started = records.AttemptStarting(simulation=0, attempt=0, folder="/0", public_key=None)
    ended = Failed(simulation=0, attempt=0, reason="ended with exit code 1", excuse="")
    past = History.of([records.PlanTaken(incarnation=1), started, ended])
    schedule = SimulationSchedule(ScheduleLimits(retries=0, max_failed=100))
    schedule.restore(past.highest, past.simulations.values(), 0.0)
    assert schedule.replan({0: 0}, 0.0) == [
        GaveUp(simulation=0, attempts=1, reason="ended with exit code 1", redraw=False)
    ]


def test_an_attempt_that_saw_no_restart_is_not_excused() -> None:
    started = records.AttemptStarting(simulation=0, attempt=0, folder="/0", public_key=None)
    past = History.of([records.PlanTaken(incarnation=2), started, records.PlanTaken(incarnation=2)])
    assert not past.attempts[0].attempt.excuse
