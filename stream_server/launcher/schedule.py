"""What to start, start again and give up. Pure: what happened goes in with the time, what to do comes out."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream_server.launcher.actions import Action, Cancel, Continue, Decline, Fail, Give, GiveUp, StopStudy, Submit
from stream_server.launcher.entry import Entry, State
from stream_server.launcher.waiting import Waiting

ATTACH_WAIT_S = 10.0
POSTPONE_S = 10.0
NUM_BARREN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rules of the study. `starts_jobs` is False when simulations only attach by themselves.

    `num_simulations` is what `max_failed` is a share of; never less than the largest plan.
    """

    starts_jobs: bool = True
    max_running: int = 1
    max_attached: int = 4
    retries: int = 2
    on_failure: str = "give_up"
    max_failed: float = 0.1
    timeout_s: float = 600.0
    num_simulations: int = 0


class Schedule:
    """The simulations of a study and their attempts.

    Every method that takes `now`, the time of a monotonic clock, returns what is to be done, in order. `tick` is due at
    `wake_at`. While the server is `away`, as it is before the first plan, nothing is started, no clock runs, and how a
    job ends is only noted. `anything_came`: some time step has reached a server.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopped = False
        self.away = True
        self._simulations: dict[int, Entry] = {}
        self._floors: dict[int, int] = {}
        self._waiting = Waiting()
        self._live: dict[int, Entry] = {}
        self._requests: deque[tuple[int, int | None, float]] = deque()
        self._num_planned = limits.num_simulations
        self._num_barren = 0
        self.anything_came = False
        self._cancel_at = math.inf
        self._postponed_to = -math.inf

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
        if not self.away:
            deadlines += [since + ATTACH_WAIT_S for _, _, since in self._requests]
            deadlines += [self._postponed_to] if self._postponed_to > -math.inf else []
        return min(deadlines, default=math.inf)

    def recall(self, floors: Mapping[int, int], entries: Iterable[Entry] = (), *, anything_came: bool = False) -> None:
        """What an earlier launcher knew, before the first plan.

        `floors` are the highest numbers of attempts that were ever used; `entries` are simulations that run, have
        failed before or were given up, of the same study run.
        """
        assert not self._simulations
        self._floors = dict(floors)
        self.anything_came = anything_came
        for it in entries:
            self._simulations[it.id] = it
            if it.state is State.RUNNING:
                self._live[it.id] = it

    def pause(self) -> None:
        """The server is gone; another one comes with its plan."""
        self.away = True
        self._requests.clear()

    def replan(self, planned: Mapping[int, int], now: float, *, new_epoch: bool = True) -> list[Action]:
        """A server is there, to which these simulations are still to come, in this order.

        Each has the highest attempt that the server knows of, -1 for none. What runs goes on. A planned simulation that
        had ended here is to run again, for the server has lost it; any other that is not planned is finished. In a
        `new_epoch`, no attempt that began before it can fail by its own fault.
        """
        self.away = self.stopped = False
        self._cancel_at = math.inf
        self._num_planned = max(self._num_planned, len(planned))
        self._waiting.keep(planned)
        actions: list[Action] = []
        for it in list(self._simulations.values()):
            it.quiet_since = now
            if it.id in planned:
                continue
            if not it.state.terminal:
                self._settle(it, State.FINISHED)
            # Its clients may not have heard that it is over, and wait for the server. Not so those of a redraw, of
            # which the server may not know yet.
            if it.has_job and not it.cancelled and it.id < self._num_planned:
                actions.append(Continue(simulation=it.id, attempt=it.attempt, attached=False))
        for simulation, attempt in planned.items():
            actions += self._want(simulation, attempt, new_epoch=new_epoch)
        return actions + self._fill(now)

    def add(self, simulation: int, now: float) -> list[Action]:
        """One more simulation is to be run, in place of one that was given up."""
        return self._want(simulation, -1, new_epoch=True) + self._fill(now)

    def renumber(self, simulation: int, attempt: int) -> None:
        """The attempt that has just begun gets a higher number, since its own was used before."""
        it = self._simulations[simulation]
        assert attempt >= it.attempt
        it.attempt = attempt

    def postpone(self, simulation: int, now: float) -> list[Action]:
        """The job of an attempt could not even be begun; that is not its fault. Nothing is started for a while."""
        it = self._simulations[simulation]
        it.has_job = False
        del self._live[simulation]
        if not it.state.terminal:
            it.state = State.WAITING
            self._waiting.add(simulation, again=True)
        self._postponed_to = now + POSTPONE_S
        return []

    def progress(self, simulation: int, attempt: int, received: int, blocked: bool, now: float) -> list[Action]:
        """The server has `received` steps of this attempt; `blocked` while it holds the simulation back."""
        it = self._simulations.get(simulation)
        # What was said of the last attempt may come after the next one has begun.
        if it is None or attempt != it.attempt or it.state not in (State.RUNNING, State.SETTLING):
            return []
        it.progress(received, blocked, now)
        if received == 0 or self.anything_came:
            return []
        self.anything_came = True
        return self._fill(now)

    def finished(self, simulation: int, now: float) -> list[Action]:
        """The server has all of a simulation, whatever its job says."""
        self.anything_came = True
        return self._end(simulation, State.FINISHED, now)

    def invalid(self, simulation: int, now: float) -> list[Action]:
        """A simulation withdrew itself."""
        return self._end(simulation, State.INVALID, now)

    def job_ended(
        self,
        simulation: int,
        attempt: int,
        exit_code: int | None,
        reason: str,
        now: float,
        *,
        excused: bool = False,
    ) -> list[Action]:
        """No process of the attempt's job is left; `excused` when nobody knows how it ended."""
        it = self._simulations[simulation]
        assert it.has_job
        assert it.attempt == attempt
        it.has_job = False
        it.excused = it.excused or excused
        if it.cancelled and not (self.away or self.stopped or it.state.terminal):
            return self._fail(it, now)
        if not it.state.terminal:
            it.settle(exit_code, reason, now)
        if self.stopped or it.state.terminal:
            del self._live[it.id]
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

    def _want(self, simulation: int, known: int, *, new_epoch: bool) -> list[Action]:
        """A simulation is still to come; the server has seen attempts up to `known`."""
        it = self._simulations.get(simulation)
        if it is None:
            self._simulations[simulation] = Entry(id=simulation, floor=max(known, self._floors.get(simulation, -1)))
            self._waiting.add(simulation, again=False)
            return []
        it.floor = max(it.floor, known)
        if simulation in self._waiting:
            return []
        if it.state is State.GIVEN_UP:
            return self._give_up(it)
        if it.has_job or it.attached:
            return self._go_on(it, known, new_epoch=new_epoch)
        if it.state is State.SETTLING and not new_epoch and not it.cancelled:
            # The last word of it is awaited, again if the study was to stop meanwhile.
            self._live[it.id] = it
        else:
            self._wait_again(it)
        return []

    def _go_on(self, it: Entry, known: int, *, new_epoch: bool) -> list[Action]:
        if known > it.attempt:
            # It has let that one in, which shuts this one out.
            it.excused, it.reason = True, "the server has seen a later attempt"
            if it.has_job:
                return [] if it.cancelled else [self._cancel(it)]
            self._wait_again(it)
            return []
        self._live[it.id] = it
        it.go_on(excused=new_epoch)
        return [] if it.cancelled else [Continue(simulation=it.id, attempt=it.attempt, attached=it.attached)]

    def _wait_again(self, it: Entry) -> None:
        it.state = State.WAITING
        self._live.pop(it.id, None)
        self._waiting.add(it.id, again=True)

    def _deadline(self, it: Entry) -> float | None:
        if self.stopped:
            return None if it.cancelled else self._cancel_at
        return None if self.away else it.deadline(self.limits.timeout_s)

    def _begin(self, it: Entry, now: float, *, has_job: bool) -> None:
        it.begin(now, has_job=has_job)
        self._live[it.id] = it

    def _cancel(self, it: Entry) -> Cancel:
        it.cancelled = True
        return Cancel(simulation=it.id, attempt=it.attempt)

    def _end(self, simulation: int, state: State, now: float) -> list[Action]:
        it = self._simulations.get(simulation)
        if it is None or it.state.terminal:
            return []
        self._waiting.remove(simulation)
        it.quiet_since = now
        self._settle(it, state)
        return self._fill(now)

    def _settle(self, it: Entry, state: State) -> None:
        it.state = state
        if not it.has_job:
            self._live.pop(it.id, None)

    def _fail(self, it: Entry, now: float) -> list[Action]:
        self._wait_again(it)
        actions: list[Action] = [
            Fail(simulation=it.id, attempt=it.attempt, reason=it.why_failed, counted=not it.excused)
        ]
        if not it.excused:
            actions += self._count_failure(it)
        return actions + self._fill(now)

    def _count_failure(self, it: Entry) -> list[Action]:
        it.failures += 1
        self._num_barren += not self.anything_came
        why = ""
        if not self.anything_came and self._num_barren >= NUM_BARREN:
            why = f"{NUM_BARREN} attempts in a row failed and no time step ever came"
        return self._give_up(it, why) if it.failures > self.limits.retries else self._stop_study(it, why)

    def _give_up(self, it: Entry, why_stop: str = "") -> list[Action]:
        it.state = State.GIVEN_UP
        self._waiting.remove(it.id)
        redraw = self.limits.on_failure == "redraw"
        # Said before the last simulation of a study is given up, after which nothing would be left to stop.
        return [
            *self._stop_study(it, why_stop or self._too_many()),
            GiveUp(simulation=it.id, attempts=it.attempt + 1, reason=it.why_failed, redraw=redraw),
        ]

    def _stop_study(self, it: Entry, why: str) -> list[Action]:
        if not why or self.stopped:
            return []
        self.stopped = True
        return [StopStudy(text=f"{why}: simulation {it.id} {it.why_failed}", simulation=it.id, attempt=it.attempt)]

    def _too_many(self) -> str:
        if self.limits.on_failure == "stop":
            return "a simulation failed for good, and simulation.on_failure is stop"
        num_given_up = self.counts[State.GIVEN_UP]
        if num_given_up > math.floor(self.limits.max_failed * self._num_planned + 1e-9):
            limit = f"simulation.max_failed = {self.limits.max_failed:g}"
            return f"{num_given_up} of {self._num_planned} simulations failed for good, more than {limit}"
        return ""

    def _fill(self, now: float) -> list[Action]:
        if now >= self._postponed_to:
            self._postponed_to = -math.inf
        actions: list[Action] = []
        num_free = self.limits.max_running - sum(not it.attached for it in self._live.values())
        may_start = self.limits.starts_jobs and not self.stopped and not self.away
        while may_start and self._postponed_to == -math.inf and num_free > 0:
            simulation = self._waiting.next_to_start(anything_came=self.anything_came, anything_runs=bool(self._live))
            if simulation is None:
                break
            it = self._simulations[simulation]
            self._begin(it, now, has_job=True)
            num_free -= 1
            actions.append(Submit(simulation=it.id, attempt=it.attempt))
        return actions + self._answer_requests(now)

    def _answer_requests(self, now: float) -> list[Action]:
        if self.away and not self.stopped:
            return []
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
        if it is None and (taken := self._waiting.next_to_give()) is not None:
            it = self._simulations[taken]
        if it is None:
            text = "every simulation is running or done"
            return None if may_change else Decline(token=token, text=text, busy=False)
        self._waiting.remove(it.id)
        self._begin(it, now, has_job=False)
        return Give(token=token, simulation=it.id, attempt=it.attempt)
