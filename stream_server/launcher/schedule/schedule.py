"""The schedule of the simulations. Pure: events go in with their time, actions come out."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from stream_server.launcher.schedule.progress_clock import ProgressClock
from stream_server.launcher.schedule.queues import AttachQueue, StartQueue
from stream_server.launcher.schedule.retry_policy import RetryPolicy, ScheduleLimits
from stream_server.launcher.schedule.shared_jobs import LiveAttempts, SharedJobs
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
from stream_server.messages.launcher_link import Dropped, FailedLater, TooMany

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
        self._live = LiveAttempts()
        self.jobs = SharedJobs(self._live, limits)
        self._clock = ProgressClock(self.jobs, self._live, timeout_s=limits.timeout_s)
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
        return self._cancel_at < math.inf and not any(it.has_job for it in self._live)

    @property
    def counts(self) -> dict[ScheduledState, int]:
        """Number of simulations in each state."""
        counted = Counter(map(STATE, self._simulations.values()))
        return {state: counted[state] for state in ScheduledState}

    def state(self, simulation: int) -> ScheduledState:
        """The state of a simulation."""
        return self._simulations[simulation].state

    def runs(self, simulation: int, attempt: int) -> bool:
        """The job of this attempt has not ended."""
        return self._running(simulation, attempt) is not None

    def is_unconfirmed(self, simulation: int) -> bool:
        """The job of a simulation is over, and the server has yet to confirm that it has all."""
        return self._simulations[simulation].unconfirmed is not None

    def failed_later(self, simulation: int) -> bool:
        """The job of a simulation that is finished has ended, and with a failure of its own."""
        state, it = self._simulations[simulation].state, self._simulations[simulation].attempt
        if state is not ScheduledState.FINISHED or it is None or it.phase is not ScheduledPhase.ENDED or self.stopped:
            return False
        return self.jobs.is_last(it) and not (it.ended_well or it.is_cancelled or it.excuse)

    def shares_a_job(self, simulation: int) -> bool:
        """Some other attempt was in the job of this one, and what that one's end means is not known yet."""
        it = self._simulations[simulation].attempt
        return it is not None and it.job is not None and bool(it.job.live.keys() - {simulation})

    def decided(self, simulation: int) -> list[ScheduledAttempt]:
        """The members of the cancelled job of this simulation whose `reason` and `excuse` are known by that."""
        it = self._simulations[simulation].attempt
        cancelled = [] if it is None or self.stopped else self.jobs.members(it)
        cancelled = [each for each in cancelled if each.phase is ScheduledPhase.CANCELLED]
        return [each for each in cancelled if not self.state(each.simulation).terminal]

    @property
    def wake_at(self) -> float:
        """The time of the next `tick` that does something; infinity when none will."""
        deadlines = [] if self.away else [*self._requests.deadlines]
        if self._postponed_to > -math.inf and not self.away:
            deadlines.append(self._postponed_to)
        if self.stopped:
            deadlines += [self._cancel_at] if any(not it.is_cancelled for it in self._live) else []
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
        for it in entries:
            if it.state is ScheduledState.WAITING and self._policy.is_exhausted(it):
                # Its launcher was killed before it had given it up.
                it.state = ScheduledState.GIVEN_UP
            it.highest = self._highest_known.get(it.id, it.highest)
            self._simulations[it.id] = it
            if it.attempt is not None:
                it.attempt.has_sent = anything_came
                it.attempt.begin_clock(now)
                if it.state is ScheduledState.RUNNING:
                    self._live.add(it.attempt)

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
        self._policy.planned(len(planned))
        self._waiting.keep(planned)
        actions: list[Action] = []
        for it in list(self._simulations.values()):
            if it.attempt is not None:
                it.attempt.quiet_since = now
            if it.id in planned:
                continue
            if not it.state.terminal:
                self._close(it, ScheduledState.FINISHED)
            # Its clients may not have heard that it is over, and wait for the server. Not so those of a redraw, of
            # which the server may not know yet.
            attempt = it.in_job
            if attempt is not None and not attempt.is_cancelled and it.id < self._policy.num_planned:
                actions.append(Continue(simulation=it.id, attempt=attempt.number, attached=False))
        for simulation, known in planned.items():
            actions += self._want(simulation, known, new_incarnation=new_incarnation)
        self._clock.note(self._live)
        return actions + self._fill(now)

    def add(self, simulation: int, now: float) -> list[Action]:
        """One more simulation is to be run, in place of one that was given up."""
        return self._want(simulation, -1, new_incarnation=True) + self._fill(now)

    def renumber(self, simulation: int, attempt: int) -> None:
        """The attempt that has just begun gets a higher number, since its own was used before."""
        it = self._simulations[simulation]
        assert it.attempt is not None
        assert attempt >= it.highest
        it.attempt.number = it.highest = attempt

    def begun(self, simulation: int, now: float) -> None:
        """The job of an attempt runs only now: it may have taken long to start it, and those before it."""
        if (it := self._simulations[simulation].attempt) is not None:
            it.begin_clock(now)

    def postpone(self, simulation: int, now: float) -> list[Action]:
        """The job of an attempt could not even be begun; that is not its fault. Nothing is started for a while."""
        it = self._simulations[simulation]
        self._leave(it)
        if not it.state.terminal:
            it.state = ScheduledState.WAITING
            self._waiting.add(simulation, again=True)
        self._postponed_to = now + POSTPONE_S
        return []

    def progress(self, simulation: int, attempt: int, received: int, blocked: bool, now: float) -> list[Action]:
        """The server has `received` steps of this attempt; `blocked` while it holds the simulation back."""
        known = self._simulations.get(simulation)
        it = known.attempt if known is not None and known.state is ScheduledState.RUNNING else None
        # What was said of the last attempt may come after the next one has begun.
        if it is None or attempt != it.number:
            return []
        it.progress(received, blocked, now)
        self._clock.note([it])
        if received == 0 or self.anything_came:
            return []
        self.anything_came = True
        return self._fill(now)

    def finished(self, simulation: int, now: float) -> list[Action]:
        """The server has all steps of a simulation, however its job ends."""
        self.anything_came = True
        it = self._simulations.get(simulation)
        unconfirmed = None if it is None else it.unconfirmed
        actions = self._end(simulation, ScheduledState.FINISHED, now)
        return actions if unconfirmed is None else [*self._failed_later(unconfirmed), *actions]

    def invalid(self, simulation: int, now: float) -> list[Action]:
        """A simulation withdrew itself."""
        return self._end(simulation, ScheduledState.INVALID, now)

    def ranks_ended(self, simulation: int, attempt: int, at_fault: str, now: float, *, over: bool) -> bool:
        """Ranks of an attempt have ended by themselves while its job runs on; `over` when none is left.

        `at_fault` tells how one of them failed, "" if none did. Returns whether this is news of the attempt: that
        nothing more is to come of it.
        """
        it = self._running(simulation, attempt)
        # Failures of jobs that were asked to end are not counted against them.
        if it is None or it.is_cancelled:
            return False
        was_spent = it.is_spent
        if at_fault:
            it.fail(at_fault)
        elif over:
            it.move(ScheduledEvent.SPEND)
        if was_spent or not it.is_spent:
            return False
        self._clock.restart(it, now)
        self._clock.note_job(it)
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
        it = self._running(simulation, attempt)
        assert it is not None
        it.job_ended(exit_code, reason, excuse, now)
        is_terminal = self.state(simulation).terminal
        if it.phase is ScheduledPhase.KILLED and not (self.away or self.stopped or is_terminal):
            return self._fail(it) + self._fill(now)
        if self.stopped or is_terminal:
            self._live.discard(simulation)
        self._clock.note_job(it)
        return [*self._failed_later(it), *self._fill(now)]

    def attach(self, token: int, simulation: int | None, now: float, *, client: str = "") -> list[Action]:
        """A client that attaches by itself asks for this simulation, or for any (None).

        The same `client` gets the same simulation as long as that runs: the answer was lost.
        """
        self._requests.add(token, simulation, now, client=client)
        return self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for it in self._late(now):
            if it.phase in (ScheduledPhase.RUNNING, ScheduledPhase.ATTACHED):
                it.reason = f"sent no new time step for {self.limits.timeout_s:g} s (simulation.timeout_s)"
            if it.has_job:
                actions.append(self._cancel(it))
            else:
                actions += self._fail(it)
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
        for it in self._live:
            if not it.has_job:
                self._live.discard(it.simulation)
        return self.tick(now)

    def _running(self, simulation: int, attempt: int) -> ScheduledAttempt | None:
        """This attempt, if its job has not ended."""
        it = self._live.get(simulation)
        return it if it is not None and it.has_job and it.number == attempt else None

    def _want(self, simulation: int, known: int, *, new_incarnation: bool) -> list[Action]:
        """A simulation is still to come; the server has seen attempts up to `known`."""
        it = self._simulations.get(simulation)
        if it is None:
            highest = max(known, self._highest_known.get(simulation, -1))
            self._simulations[simulation] = ScheduledSimulation(id=simulation, highest=highest)
            self._waiting.add(simulation, again=False, may_share=highest < 0)
            return []
        it.highest = max(it.highest, known)
        if simulation in self._waiting:
            return []
        if it.state is ScheduledState.GIVEN_UP and it.attempt is not None:
            num_given_up = self.counts[ScheduledState.GIVEN_UP]
            return self._abort_once(self._policy.give_up(it, it.attempt, num_given_up))
        running = it.in_job or it.attached
        if running is not None and not self.jobs.has_moved_on(running):
            return self._go_on(it, running, known, new_incarnation=new_incarnation)
        if (attempt := it.unconfirmed) is not None and not new_incarnation:
            if attempt.phase is ScheduledPhase.ENDED:
                # The last word of it is awaited, again if the study was to stop meanwhile.
                self._live.add(attempt)
                return []
            if simulation in self._live:
                # It was cancelled by its own clock, not because the study stopped, and its end could not be reported.
                return self._fail(attempt)
        self._wait_again(it)
        return []

    def _go_on(
        self, it: ScheduledSimulation, attempt: ScheduledAttempt, known: int, *, new_incarnation: bool
    ) -> list[Action]:
        if known > attempt.number:
            # The server has admitted that attempt, so it refuses this one.
            attempt.excuse = RESTARTED
            if attempt.phase is not ScheduledPhase.FAILED:
                attempt.reason = "the server has seen a later attempt"
            if attempt.has_job:
                return [] if attempt.is_cancelled else [self._cancel(attempt)]
            self._wait_again(it)
            return []
        self._live.add(attempt)
        it.state = ScheduledState.RUNNING
        attempt.go_on(excuse=RESTARTED if new_incarnation else "")
        if attempt.is_cancelled:
            return []
        return [Continue(simulation=it.id, attempt=attempt.number, attached=attempt.job is None)]

    def _wait_again(self, it: ScheduledSimulation) -> None:
        it.state = ScheduledState.WAITING
        self._leave(it)
        self._waiting.add(it.id, again=True, may_share=self.jobs.are_workers)

    def _leave(self, it: ScheduledSimulation) -> None:
        """Whatever becomes of the newest attempt, nothing is awaited of it."""
        self._live.discard(it.id)
        if it.attempt is not None:
            it.attempt.move(ScheduledEvent.END)

    def _late(self, now: float) -> Iterator[ScheduledAttempt]:
        """The attempts whose clock has run out, each found after what was done about the one before."""
        while not (self.away or self.stopped) and (it := self._clock.pop_late(now)) is not None:
            yield it
        if self.stopped and self._cancel_at <= now:
            yield from (it for it in self._live if not it.is_cancelled)

    def _begin(self, simulation: int, now: float, job: ScheduledJob | None, client: str = "") -> ScheduledAttempt:
        it = self._simulations[simulation].begin(now, job, client)
        self._live.add(it)
        self._clock.note([it])
        return it

    def _cancel(self, it: ScheduledAttempt) -> Cancel:
        self.jobs.cancel(it)
        return Cancel(simulation=it.simulation, attempt=it.number)

    def _end(self, simulation: int, state: ScheduledState, now: float) -> list[Action]:
        it = self._simulations.get(simulation)
        if it is None or it.state.terminal:
            return []
        self._waiting.remove(simulation)
        if it.attempt is not None:
            self._clock.restart(it.attempt, now)
        self._close(it, state)
        if it.attempt is not None:
            self._clock.note_job(it.attempt)
        return self._fill(now)

    def _close(self, it: ScheduledSimulation, state: ScheduledState) -> None:
        it.state = state
        if it.in_job is None:
            self._leave(it)
        elif it.attempt is not None:
            it.attempt.confirm()

    def _failed_later(self, it: ScheduledAttempt) -> list[Action]:
        failed = self.failed_later(it.simulation)
        return [FailedLater(simulation=it.simulation, attempt=it.number, reason=it.reason)] if failed else []

    def _fail(self, it: ScheduledAttempt) -> list[Action]:
        simulation = self._simulations[it.simulation]
        num_given_up = self.counts[ScheduledState.GIVEN_UP]
        was_not_begun = self.jobs.was_not_begun(it)
        if was_not_begun and it.phase is not ScheduledPhase.KILLED:
            it.excuse = it.excuse or NOT_BEGUN
        decided = self._policy.failed(simulation, it, anything_came=self.anything_came, num_given_up=num_given_up)
        self._leave(simulation)
        if simulation.state is ScheduledState.WAITING:
            # A worker that left its list of its own accord would do so again.
            may_share = was_not_begun and bool(it.excuse) and not it.ended_well
            self._waiting.add(it.simulation, again=True, may_share=may_share)
        return self._abort_once(decided)

    def _abort_once(self, decided: Sequence[Action]) -> list[Action]:
        """The decided actions, without `TooMany` if the study has been stopped before."""
        actions = [it for it in decided if not (self.stopped and isinstance(it, TooMany))]
        self.stopped = self.stopped or any(isinstance(it, TooMany) for it in actions)
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
                anything_runs=bool(self._live),
            )
            if not job:
                break
            num_free -= 1 if self.jobs.are_workers else len(job)
            shared = ScheduledJob(members=job)
            begun = [self._begin(simulation, now, shared) for simulation in job]
            submits = [Submit(simulation=it.simulation, attempt=it.number) for it in begun]
            actions.append(replace(submits[0], beside=tuple(submits[1:])))
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
        answers = self._requests.answer(
            self._simulations,
            now,
            attached=list(self._live.attached.values()),
            take=lambda simulation, client: self._give(simulation, now, client=client),
        )
        return [*answers]

    def _give(self, simulation: int | None, now: float, *, client: str) -> ScheduledAttempt | None:
        """The next attempt of this simulation, or of any that waits, for a client that attaches by itself."""
        if simulation is None:
            simulation = self._waiting.next_to_give()
        else:
            self._waiting.remove(simulation)
        return None if simulation is None else self._begin(simulation, now, None, client)
