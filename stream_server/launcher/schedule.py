"""What to start, start again and give up. Pure: what happened goes in with the time, what to do comes out."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from stream_server.launcher.actions import Action, Cancel, Decline, Fail, Give, GiveUp, StopStudy, Submit
from stream_server.launcher.entry import Entry, State

ATTACH_WAIT_S = 10.0
NUM_BARREN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rules of the study. `starts_jobs` is False when simulations only attach by themselves."""

    starts_jobs: bool = True
    max_running: int = 1
    max_attached: int = 4
    retries: int = 2
    on_failure: str = "give_up"
    max_failed: float = 0.1
    timeout_s: float = 600.0


class Schedule:
    """The simulations of a study and their attempts.

    Every method that takes `now`, the time of a monotonic clock, returns what is to be done, in order. `tick` is due at
    `wake_at`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopped = False
        self._simulations: dict[int, Entry] = {}
        self._untried: deque[int] = deque()
        self._retries: deque[int] = deque()
        self._live: dict[int, Entry] = {}
        self._requests: deque[tuple[int, int | None, float]] = deque()
        self._num_planned = 0
        self._num_barren = 0
        self._anything_came = False
        self._cancel_at = math.inf

    @property
    def done(self) -> bool:
        """`stop` was called and no job is left: what stops by itself still waits for the server's word."""
        return self._cancel_at < math.inf and not any(it.has_job for it in self._live.values())

    @property
    def counts(self) -> dict[State, int]:
        """How many simulations are in each state."""
        counts = dict.fromkeys(State, 0)
        for it in self._simulations.values():
            counts[it.state] += 1
        return counts

    def state(self, simulation: int) -> State:
        """Where a simulation stands."""
        return self._simulations[simulation].state

    @property
    def wake_at(self) -> float:
        """The time of the next `tick` that does something; infinity when none will."""
        deadlines = [deadline for it in self._live.values() if (deadline := self._deadline(it)) is not None]
        deadlines += [since + ATTACH_WAIT_S for _, _, since in self._requests]
        return min(deadlines, default=math.inf)

    def plan(self, simulations: Iterable[int], now: float) -> list[Action]:
        """These simulations are to be run, in this order."""
        for simulation in simulations:
            self._add(simulation)
            self._num_planned += 1
        return self._fill(now)

    def add(self, simulation: int, now: float) -> list[Action]:
        """One more simulation is to be run, in place of one that was given up."""
        self._add(simulation)
        return self._fill(now)

    def progress(self, simulation: int, attempt: int, received: int, blocked: bool, now: float) -> list[Action]:
        """The server has `received` steps of this attempt; `blocked` while it holds the simulation back."""
        it = self._simulations[simulation]
        # What was said of the last attempt may come after the next one has begun.
        if attempt != it.attempt or it.state not in (State.RUNNING, State.SETTLING):
            return []
        it.progress(received, blocked, now)
        if received == 0 or self._anything_came:
            return []
        self._anything_came = True
        return self._fill(now)

    def finished(self, simulation: int, now: float) -> list[Action]:
        """The server has all of a simulation, whatever its job says."""
        self._anything_came = True
        return self._end(simulation, State.FINISHED, now)

    def invalid(self, simulation: int, now: float) -> list[Action]:
        """A simulation withdrew itself."""
        return self._end(simulation, State.INVALID, now)

    def job_ended(self, simulation: int, attempt: int, exit_code: int | None, reason: str, now: float) -> list[Action]:
        """No process of the attempt's job is left."""
        it = self._simulations[simulation]
        assert it.has_job
        assert it.attempt == attempt
        it.has_job = False
        if self.stopped or it.state.terminal:
            del self._live[it.id]
            return self._fill(now)
        if it.cancelled:
            return self._fail(it, now)
        it.settle(exit_code, reason, now)
        return self._fill(now)

    def attach(self, token: int, simulation: int | None, now: float) -> list[Action]:
        """A client that nobody started asks for this simulation, or for any (None)."""
        self._requests.append((token, simulation, now))
        return self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for it in list(self._live.values()):
            deadline = self._deadline(it)
            if deadline is None or now < deadline:
                continue
            if it.state is State.RUNNING:
                it.reason = f"no new time step for {self.limits.timeout_s:g} s"
            if it.has_job:
                actions.append(self._cancel(it))
            else:
                actions += self._fail(it, now)
        return actions + self._fill(now)

    def stop(self, now: float, grace_s: float = 0.0) -> list[Action]:
        """The study has ended: nothing more is started, and what still runs after `grace_s` is cancelled."""
        self.stopped = True
        self._cancel_at = min(self._cancel_at, now + grace_s)
        self._live = {it.id: it for it in self._live.values() if it.has_job}
        return self.tick(now)

    def _add(self, simulation: int) -> None:
        assert simulation not in self._simulations
        self._simulations[simulation] = Entry(id=simulation)
        self._untried.append(simulation)

    def _deadline(self, it: Entry) -> float | None:
        if self.stopped:
            return None if it.cancelled else self._cancel_at
        return it.deadline(self.limits.timeout_s)

    def _begin(self, it: Entry, now: float, *, has_job: bool) -> None:
        it.begin(now, has_job=has_job)
        self._live[it.id] = it

    def _cancel(self, it: Entry) -> Cancel:
        it.cancelled = True
        return Cancel(simulation=it.id, attempt=it.attempt)

    def _end(self, simulation: int, state: State, now: float) -> list[Action]:
        it = self._simulations[simulation]
        if it.state.terminal:
            return []
        for queue in (self._untried, self._retries):
            if it.state is State.WAITING and simulation in queue:
                queue.remove(simulation)
        it.state, it.quiet_since = state, now
        if not it.has_job:
            self._live.pop(simulation, None)
        return self._fill(now)

    def _fail(self, it: Entry, now: float) -> list[Action]:
        it.failures += 1
        it.state = State.WAITING
        del self._live[it.id]
        actions: list[Action] = [Fail(simulation=it.id, attempt=it.attempt, reason=it.why_failed)]
        given_up = it.failures > self.limits.retries
        if given_up:
            it.state = State.GIVEN_UP
        else:
            self._retries.append(it.id)
        # Said before the last simulation of a study is given up, after which nothing would be left to stop.
        if why := self._why_stop(it):
            self.stopped = True
            text = f"{why}: simulation {it.id} {it.why_failed}"
            actions.append(StopStudy(text=text, simulation=it.id, attempt=it.attempt))
        if given_up:
            redraw = self.limits.on_failure == "redraw"
            actions.append(GiveUp(simulation=it.id, attempts=it.attempt + 1, reason=it.why_failed, redraw=redraw))
        return actions + self._fill(now)

    def _why_stop(self, it: Entry) -> str:
        if not self._anything_came:
            self._num_barren += 1
            if self._num_barren >= NUM_BARREN:
                return f"{NUM_BARREN} attempts in a row failed and no time step ever came"
        if it.state is not State.GIVEN_UP:
            return ""
        if self.limits.on_failure == "stop":
            return "a simulation failed for good, and simulation.on_failure is stop"
        num_given_up = self.counts[State.GIVEN_UP]
        if num_given_up > math.floor(self.limits.max_failed * self._num_planned + 1e-9):
            limit = f"simulation.max_failed = {self.limits.max_failed:g}"
            return f"{num_given_up} of {self._num_planned} simulations failed for good, more than {limit}"
        return ""

    def _fill(self, now: float) -> list[Action]:
        actions: list[Action] = []
        num_free = self.limits.max_running - sum(not it.attached for it in self._live.values())
        while self.limits.starts_jobs and not self.stopped and num_free > 0:
            it = self._next_waiting()
            if it is None:
                break
            self._begin(it, now, has_job=True)
            num_free -= 1
            actions.append(Submit(simulation=it.id, attempt=it.attempt))
        return actions + self._answer_requests(now)

    def _next_waiting(self) -> Entry | None:
        """The simulation to start next; it leaves its queue.

        Until something has come, others are tried before one that failed, and that one not beside others: whether the
        study or only this simulation is broken shows by then.
        """
        if self._anything_came:
            queue = self._retries or self._untried
        else:
            queue = self._untried or (deque() if self._live else self._retries)
        return self._simulations[queue.popleft()] if queue else None

    def _answer_requests(self, now: float) -> list[Action]:
        answers = [(request, self._answer(*request, now)) for request in self._requests]
        self._requests = deque(request for request, answer in answers if answer is None)
        return [answer for _, answer in answers if answer is not None]

    def _answer(self, token: int, simulation: int | None, since: float, now: float) -> Give | Decline | None:
        if self.stopped:
            return Decline(token=token, text="the study has ended", busy=False)
        it = None
        if simulation is not None:
            it = self._simulations.get(simulation)
            if it is None or it.state.terminal:
                state = "not in the study" if it is None else it.state
                return Decline(token=token, text=f"simulation {simulation} is {state}", busy=False)
            if it.attached:
                return Give(token=token, simulation=it.id, attempt=it.attempt)
            if it.state is not State.WAITING:
                return Decline(token=token, text=f"simulation {simulation} is run by the study itself", busy=True)
        num_attached = sum(it.attached for it in self._live.values())
        # A client that has just finished one simulation may ask for the next before the server says so.
        may_change = num_attached > 0 and now < since + ATTACH_WAIT_S
        if num_attached >= self.limits.max_attached:
            text = f"{num_attached} simulations are attached, as many as client.max_attached allows"
            return None if may_change else Decline(token=token, text=text, busy=True)
        it = self._take(it)
        if it is None:
            text = "every simulation is running or done"
            return None if may_change else Decline(token=token, text=text, busy=False)
        self._begin(it, now, has_job=False)
        return Give(token=token, simulation=it.id, attempt=it.attempt)

    def _take(self, it: Entry | None) -> Entry | None:
        if it is None:
            queue = self._untried or self._retries
            return self._simulations[queue.popleft()] if queue else None
        queue = self._retries if it.failures else self._untried
        queue.remove(it.id)
        return it
