"""One simulation, its newest attempt and the job of that, as the schedule knows them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from stream_server.messages.launcher_link import Attached, Dropped, Failed, FailedLater, GaveUp, NoneLeft, TooMany
from stream_server.wording import counted

NOT_BEGUN = "its worker ended before it had come to it"
RESTARTED = "the server or the launcher was restarted meanwhile"


class ScheduledState(StrEnum):
    """State of a simulation."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    INVALID = "invalid"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"

    @property
    def terminal(self) -> bool:
        return self not in (ScheduledState.WAITING, ScheduledState.RUNNING)


class ScheduledPhase(Enum):
    """Phase of an attempt: its job runs from `RUNNING` to `CANCELLED`."""

    ATTACHED = auto()
    """A client that nobody started runs it, without a job."""
    RUNNING = auto()
    SPENT = auto()
    """Nothing more is to come of it: the server has all, or all its ranks have ended."""
    FAILED = auto()
    """A rank of it has failed by itself; that is its `reason`."""
    CANCELLED = auto()
    """Its job is being ended. What is held against it is decided: how its processes end tells nothing."""
    ENDED = auto()
    KILLED = auto()
    """It has ended as it was `CANCELLED`."""


class ScheduledEvent(Enum):
    """Event that may change the phase of an attempt."""

    SPEND = auto()
    FAIL = auto()
    CANCEL = auto()
    END = auto()


_JOB_RUNS = (ScheduledPhase.RUNNING, ScheduledPhase.SPENT, ScheduledPhase.FAILED, ScheduledPhase.CANCELLED)

# An event that has no row changes nothing.
SCHEDULED_TRANSITIONS = {
    (ScheduledPhase.ATTACHED, ScheduledEvent.SPEND): ScheduledPhase.ENDED,
    (ScheduledPhase.ATTACHED, ScheduledEvent.END): ScheduledPhase.ENDED,
    (ScheduledPhase.RUNNING, ScheduledEvent.SPEND): ScheduledPhase.SPENT,
    (ScheduledPhase.RUNNING, ScheduledEvent.FAIL): ScheduledPhase.FAILED,
    (ScheduledPhase.RUNNING, ScheduledEvent.CANCEL): ScheduledPhase.CANCELLED,
    (ScheduledPhase.RUNNING, ScheduledEvent.END): ScheduledPhase.ENDED,
    (ScheduledPhase.SPENT, ScheduledEvent.FAIL): ScheduledPhase.FAILED,
    (ScheduledPhase.SPENT, ScheduledEvent.END): ScheduledPhase.ENDED,
    (ScheduledPhase.FAILED, ScheduledEvent.CANCEL): ScheduledPhase.CANCELLED,
    (ScheduledPhase.FAILED, ScheduledEvent.END): ScheduledPhase.ENDED,
    (ScheduledPhase.CANCELLED, ScheduledEvent.SPEND): ScheduledPhase.SPENT,
    (ScheduledPhase.CANCELLED, ScheduledEvent.END): ScheduledPhase.KILLED,
}


@dataclass(kw_only=True, slots=True)
class ScheduledJob:
    """A job: the simulations whose attempts were started in it, in their order, and those attempts that are `live`."""

    members: tuple[int, ...] = ()
    is_cancelled: bool = False
    live: dict[int, "ScheduledAttempt"] = field(default_factory=dict, compare=False, repr=False)
    _num_spent: int = field(default=0, compare=False, repr=False)

    @property
    def running(self) -> "Iterator[ScheduledAttempt]":
        """The attempts whose end was not told yet."""
        return (attempt for simulation in self.members if (attempt := self.live.get(simulation)) and attempt.has_job)

    def first_unspent(self) -> "ScheduledAttempt | None":
        """The first running attempt that is not spent."""
        # An attempt that is spent, or without a job, stays so: none is looked at twice.
        while self._num_spent < len(self.members):
            attempt = self.live.get(self.members[self._num_spent])
            if attempt is not None and attempt.has_job and not attempt.is_spent:
                return attempt
            self._num_spent += 1
        return None


@dataclass(kw_only=True, slots=True)
class ScheduledAttempt:
    """An attempt of a simulation.

    `job` is None for one that `client` runs, which may have no name. `excuse` says why a failure of it does not count:
    it has seen a restart of the server, nobody saw it end, or another one brought its job down. `ended_well`: its job
    ended with exit code 0.
    `received` counts the time steps that came of it under this server; `has_sent`: some have come, of it or of an
    earlier one. `quiet_since`, `blocked`, and `reached_s`, how long an attempt took to its last new step, are for
    `ProgressClock`.
    """

    simulation: int
    number: int
    phase: ScheduledPhase = ScheduledPhase.ATTACHED
    job: ScheduledJob | None = None
    client: str = ""
    reason: str = ""
    excuse: str = ""
    ended_well: bool = False
    received: int = 0
    has_sent: bool = False
    blocked: bool = False
    started: float = 0.0
    quiet_since: float = 0.0
    reached_s: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        """The simulations whose attempts were started in its job, this one included."""
        return (self.simulation,) if self.job is None else self.job.members

    @property
    def has_job(self) -> bool:
        return self.phase in _JOB_RUNS

    @property
    def is_spent(self) -> bool:
        """Nothing more is to come of it, though a job that it shares may go on for others."""
        return self.phase in (ScheduledPhase.SPENT, ScheduledPhase.FAILED)

    @property
    def is_cancelled(self) -> bool:
        return self.job is not None and self.job.is_cancelled

    @property
    def why_failed(self) -> str:
        """The reason of its failure, in words that follow the simulation's name."""
        if not self.ended_well:
            return self.reason
        # Counted only now: the last steps of a job may be heard of after its end.
        if not self.received and self.excuse == NOT_BEGUN:
            return (
                f"{self.reason} without having taken this simulation: with simulation.per_worker the program must "
                "take one after another, by simulations() in Python or stream_next in C and Fortran; see "
                "docs/guide/clients.md"
            )
        if not self.has_sent:
            return (
                f"{self.reason}, but had not finished: no time step had come. The program that simulation.command "
                "starts must connect with the client library, which reads STREAM_CONNECTION, send its time steps and "
                "call finish(); see docs/guide/clients.md"
            )
        came = "no time step had come that the server did not have"
        if self.received:
            came = f"{counted(self.received, 'time step')} had come"
        finish = "and no finish() afterwards (leaving `with connect()` calls it)"
        return f"{self.reason}, but had not finished: {came}, {finish}"

    def move(self, event: ScheduledEvent) -> None:
        self.phase = SCHEDULED_TRANSITIONS.get((self.phase, event), self.phase)

    def begin_clock(self, now: float) -> None:
        """Its processes run from now on."""
        self.started = self.quiet_since = now

    def go_on(self, *, excuse: str) -> None:
        """Continue under a new plan; what the server has received counts from zero."""
        self.received, self.blocked = 0, False
        self.excuse = self.excuse or excuse

    def progress(self, received: int, blocked: bool, now: float) -> None:
        """The server has `received` steps of it; `blocked` while it holds the simulation back."""
        if received > self.received:
            self.has_sent = True
            self.received, self.reached_s = received, max(self.reached_s, now - self.started)
            self.quiet_since = now
        if self.blocked and not blocked:
            self.quiet_since = now
        self.blocked = blocked

    def confirm(self) -> None:
        """The server has all of it, or wants no more."""
        self.blocked = False
        self.move(ScheduledEvent.SPEND)

    def fail(self, reason: str) -> None:
        """A rank has failed by itself while the job runs."""
        if self.phase is not ScheduledPhase.FAILED:
            self.reason = reason
        self.move(ScheduledEvent.FAIL)

    def cancel(self, reason: str = "", excuse: str = "") -> None:
        """Its job is cancelled; what is known already of how it failed, or why that does not count, stays."""
        if self.phase is ScheduledPhase.RUNNING:
            self.reason, self.excuse = reason or self.reason, self.excuse or excuse
        self.move(ScheduledEvent.CANCEL)

    def job_ended(self, exit_code: int | None, reason: str, excuse: str, now: float) -> None:
        """Its job is over; that the server has all may still be on its way. Why a cancelled one ended is known."""
        self.quiet_since = now
        self.move(ScheduledEvent.END)
        if self.phase is not ScheduledPhase.KILLED:
            self.reason, self.ended_well = reason, exit_code == 0
            self.excuse = self.excuse or excuse


@dataclass(kw_only=True, slots=True)
class ScheduledSimulation:
    """A simulation and its newest attempt.

    `highest` is the highest number that any attempt is known to have had. `failures` counts those without an excuse.
    """

    id: int
    state: ScheduledState = ScheduledState.WAITING
    highest: int = -1
    failures: int = 0
    attempt: ScheduledAttempt | None = None

    @property
    def attached(self) -> ScheduledAttempt | None:
        """The attempt, if a client that nobody started runs it."""
        attempt = self.attempt
        return attempt if attempt is not None and attempt.phase is ScheduledPhase.ATTACHED else None

    @property
    def in_job(self) -> ScheduledAttempt | None:
        return self.attempt if self.attempt is not None and self.attempt.has_job else None

    @property
    def unconfirmed(self) -> ScheduledAttempt | None:
        """The attempt, if its job is over and the server has yet to confirm that it has all."""
        is_over = self.state is ScheduledState.RUNNING and self.in_job is None and self.attached is None
        return self.attempt if is_over else None

    def begin(self, now: float, job: ScheduledJob | None, client: str) -> ScheduledAttempt:
        """The next attempt: in a job, or of the client of this name."""
        before, self.highest, self.state = self.attempt, self.highest + 1, ScheduledState.RUNNING
        self.attempt = ScheduledAttempt(
            simulation=self.id,
            number=self.highest,
            phase=ScheduledPhase.ATTACHED if job is None else ScheduledPhase.RUNNING,
            job=job,
            client=client,
            has_sent=before is not None and before.has_sent,
            reached_s=before.reached_s if before is not None else 0.0,
        )
        self.attempt.begin_clock(now)
        return self.attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit:
    """Start a job for these attempts, each of which is a simulation and a number."""

    attempts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """End the job of an attempt, and with it all that share it; `job_ended` is told of each when it is over."""

    simulation: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Continue:
    """An attempt goes on under a new plan: the server and its client are to hear of each other."""

    simulation: int
    attempt: int
    attached: bool


Action = Submit | Cancel | Continue | Failed | FailedLater | GaveUp | Dropped | Attached | NoneLeft | TooMany
