"""The schedule of the simulations. Pure: events go in with their time, actions come out."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter

from stream_server.launcher.schedule.queues import AttachQueue, StartQueue
from stream_server.launcher.schedule.retry_policy import RetryPolicy, ScheduleLimits
from stream_server.launcher.schedule.shared_jobs import ProgressClock, SharedJobs
from stream_server.launcher.schedule.simulation import (
    NOT_BEGUN,
    RESTARTED,
    Action,
    Cancel,
    Continue,
    ScheduledAttempt,
    ScheduledEvent,
    ScheduledJob,
    ScheduledPhase,
    ScheduledSimulation,
    ScheduledState,
    Submit,
)
from stream_server.messages.launcher_link import AttachRequest, Dropped, FailedLater, TooMany

POSTPONE_S = 10.0
STATE = attrgetter("state")


class SimulationSchedule:
    """The simulations of a study and their attempts.

    Every method that takes `now`, the time of a monotonic clock, returns what is to be done, in order. `tick` is due at
    `wake_at`. While the server is `away`, as it is before the first plan, nothing is started, no clock runs, and how a
    job ends is only noted. `jobs` tells who shares one. `anything_came`: some time step has reached a server.
    `why_finishing` tells why nothing is started any more, not even again; it is "" while that is not so.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        self.limits = limits
        self.stopped = False
        self.away = True
        self._simulations: dict[int, ScheduledSimulation] = {}
        self._highest_known: dict[int, int] = {}
        self.jobs = SharedJobs(limits)
        self._clock = ProgressClock(self.jobs, timeout_s=limits.timeout_s)
        self._waiting = StartQueue()
        self._requests = AttachQueue(limits.max_attached)
        self._policy = RetryPolicy(limits)
        self.anything_came = False
        self.why_finishing = ""
        self._cancel_at = math.inf
        self._postponed_to = -math.inf

    @property
    def done(self) -> bool:
        """`stop` was called and no job is left; a schedule that aborts the study still waits for `stop`."""
        return self._cancel_at < math.inf and not any(attempt.has_job for attempt in self.jobs)

    @property
    def counts(self) -> dict[ScheduledState, int]:
        """Number of simulations in each state."""
        counted = Counter(map(STATE, self._simulations.values()))
        return {state: counted[state] for state in ScheduledState}

    def state(self, simulation: int) -> ScheduledState:
        return self._simulations[simulation].state

    def runs(self, simulation: int, attempt: int) -> bool:
        """The job of this attempt has not ended."""
        return self._running(simulation, attempt) is not None

    def attached(self, simulation: int) -> ScheduledAttempt | None:
        """The attempt of a simulation that a client runs by itself, without a job."""
        return entry.attached if (entry := self._simulations.get(simulation)) is not None else None

    def is_unconfirmed(self, simulation: int) -> bool:
        """The job of a simulation is over, and the server has yet to confirm that it has all."""
        return self._simulations[simulation].unconfirmed is not None

    def failed_later(self, simulation: int) -> bool:
        """The job of a simulation that is finished has ended, and with a failure of its own."""
        entry, attempt = self._simulations[simulation], self._simulations[simulation].attempt
        if attempt is None or attempt.phase is not ScheduledPhase.ENDED:
            return False
        if entry.state is not ScheduledState.FINISHED or self.stopped:
            return False
        return self.jobs.is_last(attempt) and not (attempt.ended_well or attempt.is_cancelled or attempt.excuse)

    def shares_a_job(self, simulation: int) -> bool:
        """Some other attempt was in the job of this one, and what that one's end means is not known yet."""
        attempt = self._simulations[simulation].attempt
        return attempt is not None and attempt.job is not None and bool(attempt.job.live.keys() - {simulation})

    def decided(self, simulation: int) -> list[ScheduledAttempt]:
        """The members of the cancelled job of this simulation whose `reason` and `excuse` are known by that."""
        attempt = self._simulations[simulation].attempt
        cancelled = [] if attempt is None or self.stopped else self.jobs.members(attempt)
        cancelled = [each for each in cancelled if each.phase is ScheduledPhase.CANCELLED]
        return [each for each in cancelled if not self.state(each.simulation).terminal]

    @property
    def wake_at(self) -> float:
        """The time of the next `tick` that does something; infinity when none will."""
        deadlines = [] if self.away else [*self._requests.deadlines]
        if self._postponed_to > -math.inf and not self.away:
            deadlines.append(self._postponed_to)
        if self.stopped:
            deadlines += [self._cancel_at] if any(not attempt.is_cancelled for attempt in self.jobs) else []
        elif not self.away:
            deadlines.append(self._clock.earliest())
        return min(deadlines, default=math.inf)

    def restore(
        self,
        highest_known: Mapping[int, int],
        entries: Iterable[ScheduledSimulation],
        now: float,
        *,
        anything_came: bool = False,
        why_finishing: str = "",
    ) -> None:
        """Take what an earlier launcher knew, before the first plan.

        `highest_known` are the highest numbers of attempts that were ever used; `entries` are simulations that run,
        have failed before or were given up, of the same study run.
        """
        assert not self._simulations
        self._highest_known = dict(highest_known)
        self.anything_came = anything_came
        self.why_finishing = why_finishing
        for entry in entries:
            if entry.state is ScheduledState.WAITING and self._policy.is_exhausted(entry):
                # Its launcher was killed before it had given it up.
                entry.state = ScheduledState.GIVEN_UP
            entry.highest = self._highest_known.get(entry.id, entry.highest)
            self._simulations[entry.id] = entry
            if entry.attempt is not None:
                entry.attempt.has_sent = anything_came
                entry.attempt.begin_clock(now)
                if entry.state is ScheduledState.RUNNING:
                    self.jobs.add(entry.attempt)

    def pause(self) -> None:
        """The server is gone; the next one will send its plan."""
        self.away = True
        self._requests.clear()

    def replan(self, planned: Mapping[int, int], now: float, *, new_incarnation: bool = True) -> list[Action]:
        """A server is there and still wants these simulations, in this order.

        Each has the highest attempt that the server knows of, -1 for none. What runs goes on. A planned simulation that
        had ended here is to run again, for the server has lost it; any other that is not planned is finished. In a
        `new_incarnation`, no attempt that began before it can fail by its own fault.
        """
        self.away = self.stopped = False
        self._cancel_at = math.inf
        self._policy.note_plan(len(planned))
        self._waiting.keep(planned)
        actions: list[Action] = []
        for entry in list(self._simulations.values()):
            if entry.attempt is not None:
                entry.attempt.quiet_since = now
            if entry.id in planned:
                continue
            if not entry.state.terminal:
                self._close(entry, ScheduledState.FINISHED)
            # Its clients may not have heard that it is over, and wait for the server. Not so those of a redraw, of
            # which the server may not know yet.
            attempt = entry.in_job
            if attempt is not None and not attempt.is_cancelled and entry.id < self._policy.num_planned:
                actions.append(Continue(simulation=entry.id, attempt=attempt.number, attached=False))
        for entry in self._moved_on(planned):
            self._wait_again(entry)
        for simulation, known in planned.items():
            actions += self._want(simulation, known, new_incarnation=new_incarnation)
        self._clock.note(self.jobs)
        return actions + self._fill(now)

    def add(self, simulation: int, now: float) -> list[Action]:
        """Add a simulation, in place of one that was given up."""
        return self._want(simulation, -1, new_incarnation=True) + self._fill(now)

    def renumber(self, simulation: int, attempt: int) -> None:
        """The attempt that has just begun gets a higher number, since its own was used before."""
        entry = self._simulations[simulation]
        assert entry.attempt is not None
        assert attempt >= entry.highest
        entry.attempt.number = entry.highest = attempt

    def begun(self, simulation: int, now: float) -> None:
        """The job of an attempt runs only now: it may have taken long to start it, and those before it."""
        if (newest := self._simulations[simulation].attempt) is not None:
            newest.begin_clock(now)

    def postpone(self, simulation: int, now: float) -> None:
        """The job of an attempt could not even be begun; that is not its fault. Nothing is started for a while."""
        entry = self._simulations[simulation]
        self._leave(entry)
        if not entry.state.terminal:
            entry.state = ScheduledState.WAITING
            self._waiting.add(simulation, again=True)
        self._postponed_to = now + POSTPONE_S

    def progress(self, simulation: int, attempt: int, received: int, blocked: bool, now: float) -> list[Action]:
        """The server has `received` steps of this attempt; `blocked` while it holds the simulation back."""
        known = self._simulations.get(simulation)
        running = known.attempt if known is not None and known.state is ScheduledState.RUNNING else None
        # What was said of the last attempt may come after the next one has begun.
        if running is None or attempt != running.number:
            return []
        is_first = received > 0 and running.received == 0
        running.progress(received, blocked, now)
        self._clock.note([running])
        if not is_first:
            return []
        self.anything_came = True
        self._leave_behind(running)
        return self._fill(now)

    def finished(self, simulation: int, now: float) -> list[Action]:
        """The server has all steps of a simulation, however its job ends."""
        self.anything_came = True
        entry = self._simulations.get(simulation)
        unconfirmed = None if entry is None else entry.unconfirmed
        actions = self._end(simulation, ScheduledState.FINISHED, now)
        return actions if unconfirmed is None else [*self._report_late_failure(unconfirmed), *actions]

    def invalid(self, simulation: int, now: float) -> list[Action]:
        """A simulation withdrew itself."""
        return self._end(simulation, ScheduledState.INVALID, now)

    def ranks_ended(self, simulation: int, attempt: int, at_fault: str, now: float, *, over: bool) -> bool:
        """Ranks of an attempt have ended by themselves while its job runs on; `over` when none is left.

        `at_fault` tells how one of them failed, "" if none did. Returns whether this is news of the attempt: that
        nothing more is to come of it.
        """
        running = self._running(simulation, attempt)
        # Failures of jobs that were asked to end are not counted against them.
        if running is None or running.is_cancelled:
            return False
        was_spent = running.is_spent
        if at_fault:
            running.fail(at_fault)
        elif over:
            running.move(ScheduledEvent.SPEND)
        if was_spent or not running.is_spent:
            return False
        self._clock.restart(running, now)
        self._clock.note_job(running)
        return True

    def job_ended(
        self,
        simulation: int,
        attempt: int,
        exit_code: int | None,
        reason: str,
        now: float,
        *,
        excuse: str = "",
    ) -> list[Action]:
        """No process of the attempt's job is left; an `excuse` says why that should not count if it is a failure.

        Called for each attempt that shared the job.
        """
        running = self._running(simulation, attempt)
        assert running is not None
        running.job_ended(exit_code, reason, excuse, now)
        is_terminal = self.state(simulation).terminal
        if running.phase is ScheduledPhase.KILLED and not (self.away or self.stopped or is_terminal):
            return self._fail(running) + self._fill(now)
        if self.stopped or is_terminal:
            self.jobs.discard(simulation)
        self._clock.note_job(running)
        return [*self._report_late_failure(running), *self._fill(now)]

    def attach(self, request: AttachRequest, now: float) -> list[Action]:
        """A client asks; one of the same name gets the same simulation as long as that runs: the answer was lost."""
        self._requests.add(request, now)
        return self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for attempt in self._late(now):
            if attempt.phase in (ScheduledPhase.RUNNING, ScheduledPhase.ATTACHED):
                attempt.reason = f"sent no new time step for {self.limits.timeout_s:g} s (simulation.timeout_s)"
            if attempt.has_job:
                actions.append(self._cancel(attempt))
            else:
                actions += self._fail(attempt)
        return actions + self._fill(now)

    def was_suspended(self, seconds: float, now: float) -> None:
        """The launcher itself was stopped, or too busy to listen: neither simulations nor the server were silent."""
        self._clock.stood_still(seconds, now)

    def finish(self, reason: str, now: float) -> list[Action]:
        """Start nothing any more, under later plans neither; what runs goes on to its end."""
        self.why_finishing = reason
        return self._fill(now)

    def stop(self, now: float, grace_s: float = 0.0) -> list[Action]:
        """The study has ended: nothing more is started, and what still runs after `grace_s` is cancelled."""
        self.stopped = True
        self._cancel_at = min(self._cancel_at, now + grace_s)
        for attempt in self.jobs:
            if not attempt.has_job:
                self.jobs.discard(attempt.simulation)
        return self.tick(now)

    def _running(self, simulation: int, attempt: int) -> ScheduledAttempt | None:
        """This attempt, if its job has not ended."""
        running = self.jobs.get(simulation)
        return running if running is not None and running.has_job and running.number == attempt else None

    def _want(self, simulation: int, known: int, *, new_incarnation: bool) -> list[Action]:
        """A simulation is still to come; the server has seen attempts up to `known`."""
        entry = self._simulations.get(simulation)
        if entry is None:
            highest = max(known, self._highest_known.get(simulation, -1))
            self._simulations[simulation] = ScheduledSimulation(id=simulation, highest=highest)
            self._waiting.add(simulation, again=False, may_share=highest < 0)
            return []
        entry.highest = max(entry.highest, known)
        if simulation in self._waiting:
            return []
        if entry.state is ScheduledState.GIVEN_UP and entry.attempt is not None:
            num_given_up = self.counts[ScheduledState.GIVEN_UP]
            return self._abort_once(self._policy.give_up(entry, entry.attempt, num_given_up))
        running = entry.in_job or entry.attached
        if running is not None:
            return self._go_on(entry, running, known, new_incarnation=new_incarnation)
        if (attempt := entry.unconfirmed) is not None and not new_incarnation:
            if attempt.phase is ScheduledPhase.ENDED:
                # The last word of it is awaited, again if the study was to stop meanwhile.
                self.jobs.add(attempt)
                return []
            if simulation in self.jobs:
                # It was cancelled by its own clock, not because the study stopped, and its end could not be reported.
                return self._fail(attempt)
        self._wait_again(entry)
        return []

    def _moved_on(self, planned: Iterable[int]) -> list[ScheduledSimulation]:
        """Those planned simulations that a worker was done with, and is at others now."""
        known = [self._simulations[simulation] for simulation in planned if simulation in self._simulations]
        return [
            entry
            for entry in known
            if entry.in_job and entry.state is not ScheduledState.GIVEN_UP and self.jobs.has_moved_on(entry.in_job)
        ]

    def _leave_behind(self, attempt: ScheduledAttempt) -> None:
        """Have what is before this one on the list of its worker computed again, if the last server had it alone."""
        for before in self.jobs.before(attempt):
            entry = self._simulations[before.simulation]
            if before.phase is ScheduledPhase.SPENT and entry.state is ScheduledState.RUNNING:
                self._wait_again(entry)

    def _go_on(
        self, entry: ScheduledSimulation, attempt: ScheduledAttempt, known: int, *, new_incarnation: bool
    ) -> list[Action]:
        if known > attempt.number:
            # The server has admitted that attempt, so it refuses this one.
            attempt.excuse = RESTARTED
            if attempt.phase is not ScheduledPhase.FAILED:
                attempt.reason = "the server has seen a later attempt"
            if attempt.has_job:
                return [] if attempt.is_cancelled else [self._cancel(attempt)]
            self._wait_again(entry)
            return []
        self.jobs.add(attempt)
        entry.state = ScheduledState.RUNNING
        attempt.go_on(excuse=RESTARTED if new_incarnation else "")
        if attempt.is_cancelled:
            return []
        return [Continue(simulation=entry.id, attempt=attempt.number, attached=attempt.job is None)]

    def _wait_again(self, entry: ScheduledSimulation) -> None:
        entry.state = ScheduledState.WAITING
        self._leave(entry)
        self._waiting.add(entry.id, again=True, may_share=self.jobs.are_workers)

    def _leave(self, entry: ScheduledSimulation) -> None:
        """Whatever becomes of the newest attempt, nothing is awaited of it."""
        self.jobs.discard(entry.id)
        if entry.attempt is not None:
            entry.attempt.move(ScheduledEvent.END)

    def _late(self, now: float) -> Iterator[ScheduledAttempt]:
        """The attempts whose clock has run out, each found after what was done about the one before."""
        while not (self.away or self.stopped) and (attempt := self._clock.pop_late(now)) is not None:
            yield attempt
        if self.stopped and self._cancel_at <= now:
            yield from (attempt for attempt in self.jobs if not attempt.is_cancelled)

    def _begin(self, simulation: int, now: float, job: ScheduledJob | None, client: str = "") -> ScheduledAttempt:
        attempt = self._simulations[simulation].begin(now, job, client)
        self.jobs.add(attempt)
        self._clock.note([attempt])
        return attempt

    def _cancel(self, attempt: ScheduledAttempt) -> Cancel:
        self.jobs.cancel(attempt)
        return Cancel(simulation=attempt.simulation, attempt=attempt.number)

    def _end(self, simulation: int, state: ScheduledState, now: float) -> list[Action]:
        entry = self._simulations.get(simulation)
        if entry is None or entry.state.terminal:
            return []
        self._waiting.remove(simulation)
        if entry.attempt is not None:
            self._leave_behind(entry.attempt)
            self._clock.restart(entry.attempt, now)
        self._close(entry, state)
        if entry.attempt is not None:
            self._clock.note_job(entry.attempt)
        return self._fill(now)

    def _close(self, entry: ScheduledSimulation, state: ScheduledState) -> None:
        entry.state = state
        if entry.in_job is None:
            self._leave(entry)
        elif entry.attempt is not None:
            entry.attempt.confirm()

    def _report_late_failure(self, attempt: ScheduledAttempt) -> list[Action]:
        if not self.failed_later(attempt.simulation):
            return []
        return [FailedLater(simulation=attempt.simulation, attempt=attempt.number, reason=attempt.reason)]

    def _fail(self, attempt: ScheduledAttempt) -> list[Action]:
        simulation = self._simulations[attempt.simulation]
        num_given_up = self.counts[ScheduledState.GIVEN_UP]
        was_not_begun = self.jobs.was_not_begun(attempt)
        if was_not_begun and attempt.phase is not ScheduledPhase.KILLED:
            attempt.excuse = attempt.excuse or NOT_BEGUN
        decided = self._policy.failed(simulation, attempt, anything_came=self.anything_came, num_given_up=num_given_up)
        self._leave(simulation)
        if simulation.state is ScheduledState.WAITING:
            # A worker that left its list of its own accord would do so again.
            may_share = was_not_begun and bool(attempt.excuse) and not attempt.ended_well
            self._waiting.add(attempt.simulation, again=True, may_share=may_share)
        return self._abort_once(decided)

    def _abort_once(self, decided: Sequence[Action]) -> list[Action]:
        """The decided actions, without `TooMany` if the study has been stopped before."""
        actions = [action for action in decided if not (self.stopped and isinstance(action, TooMany))]
        self.stopped = self.stopped or any(isinstance(action, TooMany) for action in actions)
        return actions

    def _fill(self, now: float) -> list[Action]:
        if now >= self._postponed_to:
            self._postponed_to = -math.inf
        actions: list[Action] = []
        if self.why_finishing and not (self.stopped or self.away):
            actions += self._drop_all(self.why_finishing)
        num_free = self.limits.max_running - self.jobs.num
        may_start = self.limits.starts_jobs and not self.stopped and not self.away
        while may_start and self._postponed_to == -math.inf and num_free > 0:
            job = self._waiting.next_job(
                per_job=self.jobs.num_in_next(len(self._waiting)),
                num_free=max(num_free, self.limits.per_worker),
                anything_came=self.anything_came,
                anything_runs=bool(self.jobs),
            )
            if not job:
                break
            num_free -= 1 if self.jobs.are_workers else len(job)
            shared = ScheduledJob(members=job)
            begun = [self._begin(simulation, now, shared) for simulation in job]
            actions.append(Submit(attempts=tuple((attempt.simulation, attempt.number) for attempt in begun)))
        return actions + self._answer_requests(now)

    def _drop_all(self, reason: str) -> list[Dropped]:
        """Drop all simulations that wait to be started."""
        dropped = self._waiting.clear()
        for simulation in dropped:
            self._simulations[simulation].state = ScheduledState.DROPPED
        return [Dropped(simulations=dropped, reason=reason)] if dropped else []

    def _answer_requests(self, now: float) -> list[Action]:
        if self.stopped:
            return [*self._requests.decline_all("the study has ended")]
        if self.away:
            return []
        attached = list(self.jobs.attached.values())
        return [*self._requests.answer(self._simulations, now, attached=attached, take=partial(self._give, now))]

    def _give(self, now: float, simulation: int | None, client: str) -> ScheduledAttempt | None:
        """The next attempt of this simulation, or of any that waits, for a client that attaches by itself."""
        if simulation is None:
            simulation = self._waiting.next_to_give()
        else:
            self._waiting.remove(simulation)
        return None if simulation is None else self._begin(simulation, now, None, client)
