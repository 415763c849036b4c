"""What to start, start again and give up. Pure: what happened goes in with the time, what to do comes out."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stream_server.launcher.actions import Action, Cancel, Continue, Fail, GiveUp, StopStudy, Submit
from stream_server.launcher.entry import RESTARTED, Entry, State
from stream_server.launcher.failures import Failures
from stream_server.launcher.limits import Limits
from stream_server.launcher.requests import Requests
from stream_server.launcher.shared_jobs import SharedJobs
from stream_server.launcher.waiting import Waiting

POSTPONE_S = 10.0


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
        self._jobs = SharedJobs(self._simulations)
        self._waiting = Waiting()
        self._live: dict[int, Entry] = {}
        self._requests = Requests(limits.max_attached)
        self._failures = Failures(limits)
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

    def runs(self, simulation: int, attempt: int) -> bool:
        """The job of this attempt has not ended."""
        it = self._simulations.get(simulation)
        return it is not None and it.has_job and it.attempt == attempt

    def shares_a_job(self, simulation: int) -> bool:
        """Some other attempt was in the job of this one, and what that one's end means is not known yet."""
        return any(it.id != simulation and simulation in it.mates for it in self._live.values())

    def decided(self, simulation: int) -> list[Entry]:
        """Those in the job of this one, which was cancelled, whose `reason` and `excuse` are known thereby."""
        it = self._simulations[simulation]
        members = () if self.stopped else self._jobs.members(it)
        return [each for each in members if each.is_decided and not each.state.terminal]

    @property
    def wake_at(self) -> float:
        """The time of the next `tick` that does something; infinity when none will."""
        deadlines = [deadline for it in self._live.values() if (deadline := self._deadline(it)) is not None]
        if not self.away:
            deadlines += self._requests.deadlines
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
            if it.state is State.WAITING and it.failures > self.limits.retries:
                # Its launcher was killed before it had given it up.
                it.state = State.GIVEN_UP
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
        self._failures.planned(len(planned))
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
            if it.has_job and not it.cancelled and it.id < self._failures.num_planned:
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

    def begun(self, simulation: int, now: float) -> None:
        """The job of an attempt runs only now: it may have taken long to start it, and those before it."""
        it = self._simulations[simulation]
        it.started = it.quiet_since = now

    def postpone(self, simulation: int, now: float) -> list[Action]:
        """The job of an attempt could not even be begun; that is not its fault. Nothing is started for a while."""
        it = self._simulations[simulation]
        it.has_job = False
        self._live.pop(simulation, None)
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

    def ranks_ended(self, simulation: int, attempt: int, at_fault: str, now: float, *, over: bool) -> None:
        """Ranks of an attempt have ended by themselves while its job runs on; `over` when none is left.

        `at_fault` tells how one of them failed, "" if none did.
        """
        it = self._simulations.get(simulation)
        # What those do that were told to end is no fault of theirs.
        if it is None or it.cancelled or not self.runs(simulation, attempt):
            return
        was_spent = it.is_spent
        it.at_fault, it.over = it.at_fault or at_fault, it.over or over
        if it.is_spent and not was_spent:
            self._jobs.give_time_to_end(it, now)

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

        Of those that shared the job, each is told.
        """
        it = self._simulations[simulation]
        assert it.has_job
        assert it.attempt == attempt
        it.has_job = False
        it.cancelled = it.is_decided
        # The excuse of one that was cancelled is known since then.
        it.excuse = it.excuse or ("" if it.cancelled else excuse)
        if it.cancelled and not (self.away or self.stopped or it.state.terminal):
            return self._fail(it) + self._fill(now)
        if not it.state.terminal:
            it.settle(exit_code, reason, now)
        if self.stopped or it.state.terminal:
            del self._live[it.id]
        return self._fill(now)

    def attach(self, token: int, simulation: int | None, now: float, *, client: str = "") -> list[Action]:
        """A client that nobody started asks for this simulation, or for any (None).

        The same `client` gets the same simulation as long as that runs: it has not heard the answer.
        """
        self._requests.add(token, simulation, now, client=client)
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
                actions += self._fail(it)
        return actions + self._fill(now)

    def overslept(self, seconds: float, now: float) -> None:
        """The launcher itself was stopped, or too busy to listen: neither simulations nor the server were silent."""
        for it in self._live.values():
            it.quiet_since = min(now, it.quiet_since + seconds)

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
            self._waiting.add(simulation, again=False, may_share=self._simulations[simulation].is_new)
            return []
        it.floor = max(it.floor, known)
        if simulation in self._waiting:
            return []
        if it.state is State.GIVEN_UP:
            return self._give_up(it)
        if it.has_job or it.attached:
            return self._go_on(it, known, new_epoch=new_epoch)
        if it.state is State.SETTLING and not new_epoch:
            if not it.cancelled:
                # The last word of it is awaited, again if the study was to stop meanwhile.
                self._live[it.id] = it
                return []
            if it.id in self._live:
                # It was cancelled by its own clock, not as the study stopped, and nobody could be told of its end.
                return self._fail(it)
        self._wait_again(it)
        return []

    def _go_on(self, it: Entry, known: int, *, new_epoch: bool) -> list[Action]:
        if known > it.attempt:
            # It has let that one in, which shuts this one out.
            it.excuse, it.reason = RESTARTED, "the server has seen a later attempt"
            if it.has_job:
                return [] if it.cancelled else [self._cancel(it)]
            self._wait_again(it)
            return []
        self._live[it.id] = it
        it.go_on(excuse=RESTARTED if new_epoch else "")
        return [] if it.cancelled else [Continue(simulation=it.id, attempt=it.attempt, attached=it.attached)]

    def _wait_again(self, it: Entry) -> None:
        it.state = State.WAITING
        self._live.pop(it.id, None)
        self._waiting.add(it.id, again=True)

    def _deadline(self, it: Entry) -> float | None:
        if self.stopped:
            return None if it.cancelled else self._cancel_at
        return None if self.away or self._jobs.waits(it) else it.deadline(self.limits.timeout_s)

    def _begin(
        self, simulation: int, now: float, *, has_job: bool, mates: tuple[int, ...] = (), client: str = ""
    ) -> Entry:
        it = self._simulations[simulation]
        it.begin(now, has_job=has_job, mates=mates, client=client)
        self._live[it.id] = it
        return it

    def _cancel(self, it: Entry) -> Cancel:
        self._jobs.cancel(it)
        return Cancel(simulation=it.id, attempt=it.attempt)

    def _end(self, simulation: int, state: State, now: float) -> list[Action]:
        it = self._simulations.get(simulation)
        if it is None or it.state.terminal:
            return []
        self._waiting.remove(simulation)
        self._jobs.give_time_to_end(it, now)
        self._settle(it, state)
        return self._fill(now)

    def _settle(self, it: Entry, state: State) -> None:
        it.state = state
        if not it.has_job:
            self._live.pop(it.id, None)

    def _fail(self, it: Entry) -> list[Action]:
        self._wait_again(it)
        actions: list[Action] = [Fail(simulation=it.id, attempt=it.attempt, reason=it.why_failed, excuse=it.excuse)]
        if not it.excuse:
            actions += self._count_failure(it)
        return actions

    def _count_failure(self, it: Entry) -> list[Action]:
        it.failures += 1
        why = "" if self.anything_came else self._failures.count_barren(it)
        return self._give_up(it, why) if it.failures > self.limits.retries else self._stop_study(it, why)

    def _give_up(self, it: Entry, why_stop: str = "") -> list[Action]:
        it.state = State.GIVEN_UP
        self._waiting.remove(it.id)
        redraw = self.limits.on_failure == "redraw"
        # Said before the last simulation of a study is given up, after which nothing would be left to stop.
        return [
            *self._stop_study(it, why_stop or self._failures.too_many(self.counts[State.GIVEN_UP])),
            GiveUp(simulation=it.id, attempts=it.attempt + 1, reason=it.why_failed, redraw=redraw),
        ]

    def _stop_study(self, it: Entry, why: str) -> list[Action]:
        if not why or self.stopped:
            return []
        self.stopped = True
        return [StopStudy(text=f"{why}: simulation {it.id} {it.why_failed}", simulation=it.id, attempt=it.attempt)]

    def _fill(self, now: float) -> list[Action]:
        if now >= self._postponed_to:
            self._postponed_to = -math.inf
        actions: list[Action] = []
        num_free = self.limits.max_running - sum(not it.attached for it in self._live.values())
        may_start = self.limits.starts_jobs and not self.stopped and not self.away
        while may_start and self._postponed_to == -math.inf and num_free > 0:
            job = self._waiting.next_job(
                per_job=self.limits.per_job,
                num_free=num_free,
                anything_came=self.anything_came,
                anything_runs=bool(self._live),
            )
            if not job:
                break
            num_free -= len(job)
            submits = [self._submit(simulation, now, job) for simulation in job]
            actions.append(replace(submits[0], beside=tuple(submits[1:])))
        return actions + self._answer_requests(now)

    def _submit(self, simulation: int, now: float, job: tuple[int, ...]) -> Submit:
        it = self._begin(simulation, now, has_job=True, mates=job)
        return Submit(simulation=it.id, attempt=it.attempt)

    def _answer_requests(self, now: float) -> list[Action]:
        if self.stopped:
            return [*self._requests.decline_all("the study has ended")]
        if self.away:
            return []
        attached = [it for it in self._live.values() if it.attached]
        answers = self._requests.answer(
            self._simulations,
            now,
            attached=attached,
            take=lambda simulation, client: self._give(simulation, now, client=client),
        )
        return [*answers]

    def _give(self, simulation: int | None, now: float, *, client: str) -> Entry | None:
        """The next attempt of this simulation, or of any that waits, for a client that nobody started."""
        if simulation is None:
            simulation = self._waiting.next_to_give()
        else:
            self._waiting.remove(simulation)
        return None if simulation is None else self._begin(simulation, now, has_job=False, client=client)
