"""The state that earlier launchers left, as the records of the journal add up to it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_server.launcher.journal.records import (
    AttemptCancelled,
    AttemptEnded,
    AttemptStarted,
    AttemptStarting,
    FirstStep,
    JournalRecord,
    LauncherLeft,
    LauncherStarted,
    PlanTaken,
    ServerEnded,
    ServerStarted,
    ServerStarting,
)
from stream_server.launcher.schedule.simulation import (
    RESTARTED,
    ScheduledAttempt,
    ScheduledEvent,
    ScheduledJob,
    ScheduledPhase,
    ScheduledSimulation,
    ScheduledState,
)
from stream_server.machine.processes import Leader
from stream_server.messages.launcher_link import Attached, Committed, Failed, FinishSimulations, GaveUp

RUNNING = "running"
ENDED = "ended"
CANCELLED = "cancelled"
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(kw_only=True, slots=True)
class RecordedAttempt:
    """An attempt as the schedule had it, and what was written beside that.

    `starting` tells of its job, and is None without one or where no record of its begin is left. `end` is there once
    that was written. `interrupted`: its launcher ended before.
    """

    attempt: ScheduledAttempt
    starting: AttemptStarting | None = None
    handle: str | None = None
    end: AttemptEnded | Failed | None = None
    interrupted: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.attempt.simulation, self.attempt.number

    @property
    def state(self) -> str:
        """One of running, ended, cancelled, failed, or interrupted by the end of its launcher."""
        if isinstance(self.end, Failed):
            return FAILED
        if self.attempt.phase in (ScheduledPhase.CANCELLED, ScheduledPhase.KILLED):
            return CANCELLED
        return ENDED if self.end is not None else INTERRUPTED if self.interrupted else RUNNING


@dataclass(kw_only=True, slots=True)
class OpenServer:
    """A start of the server without a recorded end."""

    starting: ServerStarting
    leader: Leader | None = None


@dataclass(kw_only=True, slots=True)
class History:
    """The state that earlier launchers left.

    `all_attempts` has every attempt in the order in which they began, `highest` the highest one of every simulation,
    and `num_starts` counts the server's starts, over all runs. All else is of the last run alone, the one that the
    `launcher` began which wrote last, or that it resumed. `attempts` has those of which no end was written, `jobs` all
    attempts, open or not, of each job, by its folder, and `simulations` what a schedule needs to go on.
    `why_finishing` tells why nothing is started any more, "" unless that is so.
    """

    launcher: LauncherStarted | None = None
    ended_in_order: bool = True
    all_attempts: dict[tuple[int, int], RecordedAttempt] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    num_starts: int = 0
    incarnation: int = 0
    attempts: dict[int, RecordedAttempt] = field(default_factory=dict)
    jobs: dict[str, list[RecordedAttempt]] = field(default_factory=dict)
    simulations: dict[int, ScheduledSimulation] = field(default_factory=dict)
    anything_came: bool = False
    why_finishing: str = ""
    server: OpenServer | None = None
    num_in_a_row: int = 0
    failed_batch: int | None = None

    @classmethod
    def of(cls, records: Iterable[JournalRecord]) -> "History":
        """Add them up."""
        history = cls()
        for record in records:
            history = history.after(record)
        return history

    def after(self, record: JournalRecord) -> "History":
        """The history with one more record: this object, or another one where a new run begins."""
        if not isinstance(record, LauncherStarted):
            self._add(record)
            return self
        history = self if record.resumed else self.of_other_runs()
        history.launcher, history.ended_in_order = record, False
        return history

    def in_job(self, job: str) -> list[RecordedAttempt]:
        """The attempts of a job that have no recorded end."""
        return [begun for begun in self.jobs[job] if self.attempts.get(begun.attempt.simulation) is begun]

    def is_given_up(self, simulation: int) -> bool:
        """Whether no attempt is left for a simulation in the last run."""
        return simulation in self.simulations and self.simulations[simulation].state is ScheduledState.GIVEN_UP

    def of_other_runs(self) -> "History":
        """Return what a new run needs to know of the ones before it."""
        self._interrupt()
        return History(all_attempts=self.all_attempts, highest=self.highest, num_starts=self.num_starts)

    def _interrupt(self) -> None:
        for recorded in self.all_attempts.values():
            recorded.interrupted |= recorded.end is None

    def _add(self, record: JournalRecord) -> None:
        match record:
            case LauncherLeft():
                self.ended_in_order = True
                self._interrupt()
            case PlanTaken(incarnation=incarnation):
                for recorded in self.attempts.values() if incarnation != self.incarnation else ():
                    recorded.attempt.excuse = recorded.attempt.excuse or RESTARTED
                self.incarnation = incarnation
            case FirstStep():
                self.anything_came = True
            case FinishSimulations(reason=reason):
                self.why_finishing = reason
            case GaveUp(simulation=simulation, attempts=attempts):
                self._ended(simulation, attempts - 1, record.reason).state = ScheduledState.GIVEN_UP
            case ServerStarting():
                self.server = OpenServer(starting=record)
                self.num_starts = max(self.num_starts, record.number)
            case ServerStarted() if self.server is not None:
                self.server.leader = Leader(pid=record.pid, started=record.started)
            case ServerEnded():
                self.server = None
                self.num_in_a_row, self.failed_batch = record.num_in_a_row, record.failed_batch
            case Committed():
                self.num_in_a_row = 0
            case AttemptStarting() | AttemptStarted() | Attached() | AttemptCancelled() | AttemptEnded() | Failed():
                self._add_of_attempt(record)

    def _add_of_attempt(
        self, record: AttemptStarting | AttemptStarted | Attached | AttemptCancelled | AttemptEnded | Failed
    ) -> None:
        simulation, number = record.simulation, record.attempt
        self.highest[simulation] = max(number, self.highest.get(simulation, -1))
        match record:
            case AttemptStarting():
                mates = self.jobs.setdefault(record.job or record.folder, [])
                job = mates[0].attempt.job if mates else None
                job = ScheduledJob() if job is None else job
                job.members += (simulation,)
                attempt = ScheduledAttempt(simulation=simulation, number=number, phase=ScheduledPhase.RUNNING, job=job)
                mates.append(self._begin(RecordedAttempt(attempt=attempt, starting=record)))
            # The answer to a client is repeated when it was lost.
            case Attached(client=client) if (simulation, number) not in self.all_attempts:
                attempt = ScheduledAttempt(simulation=simulation, number=number, client=client)
                self._begin(RecordedAttempt(attempt=attempt))
            case AttemptStarted() if simulation in self.attempts:
                self.attempts[simulation].handle = record.handle
            case AttemptCancelled() if simulation in self.attempts:
                attempt = self.attempts[simulation].attempt
                attempt.reason, attempt.excuse = record.reason, record.excuse or attempt.excuse
                attempt.cancel()
                if attempt.job is not None:
                    attempt.job.is_cancelled = True
            case AttemptEnded() | Failed():
                known = self._ended(simulation, number, record.reason)
                self.all_attempts[simulation, number].end = record
                known.failures += isinstance(record, Failed) and not record.excuse

    def _begin(self, begun: RecordedAttempt) -> RecordedAttempt:
        """An attempt begins, in place of the last one of its simulation if that is open."""
        simulation = begun.attempt.simulation
        self._leave(simulation)
        known = self.simulations.setdefault(simulation, ScheduledSimulation(id=simulation))
        known.state, known.attempt = ScheduledState.RUNNING, begun.attempt
        self.attempts[simulation] = self.all_attempts[begun.key] = begun
        return begun

    def _ended(self, simulation: int, number: int, reason: str) -> ScheduledSimulation:
        """No attempt of a simulation is open any more. The last one, of this number, ended for this reason."""
        self._leave(simulation)
        unknown = RecordedAttempt(attempt=ScheduledAttempt(simulation=simulation, number=number))
        attempt = self.all_attempts.setdefault((simulation, number), unknown).attempt
        if attempt.phase not in (ScheduledPhase.CANCELLED, ScheduledPhase.KILLED):
            attempt.reason = reason
        attempt.move(ScheduledEvent.END)
        known = self.simulations.setdefault(simulation, ScheduledSimulation(id=simulation))
        known.attempt = attempt
        # The end of a job is recorded after its simulation was given up.
        if known.state is not ScheduledState.GIVEN_UP:
            known.state = ScheduledState.WAITING
        return known

    def _leave(self, simulation: int) -> None:
        """No attempt of a simulation is open any more: for the next launcher it was never in its job."""
        left = self.attempts.pop(simulation, None)
        if left is not None and (job := left.attempt.job) is not None:
            job.members = tuple(member for member in job.members if member != simulation)
