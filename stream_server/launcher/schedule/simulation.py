"""One simulation, as the schedule knows it."""

from dataclasses import dataclass
from enum import StrEnum

from stream_server.messages.launcher_link import Attached, Dropped, Failed, FailedLater, GaveUp, NoneLeft, TooMany
from stream_server.wording import counted

NOT_BEGUN = "its worker ended before it had come to it"
RESTARTED = "the server or the launcher was restarted meanwhile"


class ScheduledState(StrEnum):
    """State of a simulation; in `EXITED` its job is over, and the server has yet to confirm that it has all."""

    WAITING = "waiting"
    RUNNING = "running"
    EXITED = "exited"
    FINISHED = "finished"
    INVALID = "invalid"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"

    @property
    def terminal(self) -> bool:
        return self not in (ScheduledState.WAITING, ScheduledState.RUNNING, ScheduledState.EXITED)


@dataclass(kw_only=True, slots=True)
class ScheduledSimulation:
    """A simulation and its newest attempt.

    `highest_known` is the highest number that any attempt is known to have had. `excuse` says why a failure of this
    attempt does not count: it has seen a restart of the server, nobody saw it end, or another one brought its job down.
    `job_members` are the simulations whose attempts were started in one job, this one included.
    `quiet_since`, `blocked`, and `reached_s`, how long an attempt took to its last new step, are for `ProgressClock`.
    `has_sent`: a time step of this attempt or an earlier one has come; `received` counts those that came of this one
    alone. `ended_well`: its job ended with exit code 0.
    While the job runs, `at_fault` tells how a rank of this attempt failed by itself, and `over` that nobody sends for
    it any more: all its ranks have ended, or it had ended for a server that has lost it.
    `client` is the name of the one that runs this attempt without a job, as far as it has one.
    """

    id: int
    state: ScheduledState = ScheduledState.WAITING
    attempt: int = -1
    highest_known: int = -1
    failures: int = 0
    has_job: bool = False
    cancelled: bool = False
    excuse: str = ""
    job_members: tuple[int, ...] = ()
    reason: str = ""
    received: int = 0
    has_sent: bool = False
    blocked: bool = False
    started: float = 0.0
    quiet_since: float = 0.0
    reached_s: float = 0.0
    ended_well: bool = False
    at_fault: str = ""
    over: bool = False
    client: str = ""

    def __post_init__(self) -> None:
        self.job_members = self.job_members or (self.id,)

    @property
    def why_failed(self) -> str:
        """The reason of this attempt's failure, in words that follow the simulation's name."""
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

    @property
    def attached(self) -> bool:
        """A client that nobody started runs this attempt."""
        return self.state is ScheduledState.RUNNING and not self.has_job

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to come of this attempt, though a job that it shares may go on for others."""
        return self.state.terminal or self.over or bool(self.at_fault)

    @property
    def is_decided(self) -> bool:
        """Whether it was cancelled before it was over, so that how its processes ended tells nothing."""
        return self.cancelled and (bool(self.at_fault) or not self.over)

    @property
    def is_new(self) -> bool:
        """Whether it has never been tried."""
        return max(self.attempt, self.highest_known) < 0

    def begin(self, now: float, *, has_job: bool, job_members: tuple[int, ...] = (), client: str = "") -> None:
        """The next attempt."""
        self.state, self.has_job = ScheduledState.RUNNING, has_job
        self.attempt = max(self.attempt, self.highest_known) + 1
        self.cancelled, self.reason, self.received, self.blocked = False, "", 0, False
        self.excuse, self.ended_well, self.job_members = "", False, job_members or (self.id,)
        self.at_fault, self.over, self.client = "", False, client
        self.started = self.quiet_since = now

    def go_on(self, *, excuse: str) -> None:
        """Continue this attempt under a new plan; what the server has received counts anew."""
        self.over = self.over or self.state.terminal
        self.state, self.received, self.blocked = ScheduledState.RUNNING, 0, False
        self.excuse = self.excuse or excuse

    def progress(self, received: int, blocked: bool, now: float) -> None:
        """The server has `received` steps of this attempt; `blocked` while it holds the simulation back."""
        if received > self.received:
            self.has_sent = True
            self.received, self.reached_s = received, max(self.reached_s, now - self.started)
            self.quiet_since = now
        if self.blocked and not blocked:
            self.quiet_since = now
        self.blocked = blocked

    def job_exited(self, exit_code: int | None, reason: str, now: float) -> None:
        """The job is over; that the server has all may still be on its way. Why a cancelled one ended is known."""
        if not self.state.terminal:
            self.state, self.quiet_since = ScheduledState.EXITED, now
        if self.cancelled:
            return
        self.reason, self.ended_well = reason, exit_code == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit:
    """Start the job of an attempt, and with it those of the attempts `beside` it, which share the job."""

    simulation: int
    attempt: int
    beside: tuple["Submit", ...] = ()


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
