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
from stream_server.launcher.schedule.simulation import RESTARTED, ScheduledSimulation, ScheduledState
from stream_server.machine.processes import Leader
from stream_server.messages.launcher_link import Attached, Committed, Failed, FinishSimulations, GaveUp

RUNNING = "running"
ENDED = "ended"
CANCELLED = "cancelled"
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(kw_only=True, slots=True)
class RecordedAttempt:
    """An attempt: with `folder` that of a job, without that of the `client` that attached.

    `job` is the folder in which its job runs, with `ranks` ranks for each attempt. `cancelled` if that is to end, and
    `end` once that was written. `interrupted`: its launcher ended before. `saw_restart`: it began under an earlier
    server.
    """

    simulation: int
    attempt: int
    folder: str | None = None
    client: str = ""
    job: str | None = None
    ranks: int = 1
    public_key: str | None = None
    handle: str | None = None
    cancelled: AttemptCancelled | None = None
    end: AttemptEnded | Failed | None = None
    interrupted: bool = False
    saw_restart: bool = False

    @property
    def state(self) -> str:
        """One of running, ended, cancelled, failed, or interrupted by the end of its launcher."""
        if isinstance(self.end, Failed):
            return FAILED
        if self.cancelled is not None:
            return CANCELLED
        return ENDED if self.end is not None else INTERRUPTED if self.interrupted else RUNNING

    @property
    def reason(self) -> str:
        """Why it was cancelled, or how it ended."""
        said = self.cancelled or self.end
        return "" if said is None else said.reason


@dataclass(kw_only=True, slots=True)
class OpenServer:
    """A start of the server of which no end was written."""

    starting: ServerStarting
    leader: Leader | None = None


@dataclass(kw_only=True, slots=True)
class History:
    """The state that earlier launchers left.

    `all_attempts` has every attempt in the order in which they began, `highest` the highest one of every simulation,
    and `num_starts` counts the server's starts, over all runs. All else is of the last run alone, the one that the
    `launcher` began which wrote last, or that it resumed. `attempts` has those of which no end was written, and `jobs`
    all attempts, open or not, of each job that was shared, by its folder. `reasons` tell how the last attempt of a
    simulation ended. `why_finishing` tells why nothing is started any more, "" unless that is so.
    """

    launcher: LauncherStarted | None = None
    ended_in_order: bool = True
    all_attempts: dict[tuple[int, int], RecordedAttempt] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    num_starts: int = 0
    incarnation: int = 0
    attempts: dict[int, RecordedAttempt] = field(default_factory=dict)
    jobs: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
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
        """The attempts of a job of which no end was written."""
        return [it for it in self.attempts.values() if it.job == job]

    def of_other_runs(self) -> "History":
        """Return what a new run needs to know of the ones before it."""
        self._interrupt()
        return History(all_attempts=self.all_attempts, highest=self.highest, num_starts=self.num_starts)

    def _interrupt(self) -> None:
        for it in self.all_attempts.values():
            it.interrupted |= it.end is None

    def _add(self, record: JournalRecord) -> None:
        match record:
            case LauncherLeft():
                self.ended_in_order = True
                self._interrupt()
            case PlanTaken(incarnation=incarnation):
                for it in self.attempts.values():
                    it.saw_restart |= incarnation != self.incarnation
                self.incarnation = incarnation
            case FirstStep():
                self.anything_came = True
            case FinishSimulations(reason=reason):
                self.why_finishing = reason
            case GaveUp(simulation=simulation, reason=reason):
                self.given_up[simulation] = reason
            case ServerStarting() | ServerStarted() | ServerEnded() | Committed():
                self._add_of_server(record)
            case AttemptStarting() | AttemptStarted() | Attached() | AttemptCancelled() | AttemptEnded() | Failed():
                self._add_of_attempt(record)

    def _add_of_server(self, record: ServerStarting | ServerStarted | ServerEnded | Committed) -> None:
        match record:
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

    def _add_of_attempt(
        self, record: AttemptStarting | AttemptStarted | Attached | AttemptCancelled | AttemptEnded | Failed
    ) -> None:
        simulation, attempt = record.simulation, record.attempt
        self.highest[simulation] = max(attempt, self.highest.get(simulation, -1))
        match record:
            case AttemptStarting():
                job = record.job or record.folder
                self._begin(
                    RecordedAttempt(
                        simulation=simulation,
                        attempt=attempt,
                        folder=record.folder,
                        job=job,
                        ranks=record.ranks,
                        public_key=record.public_key,
                    )
                )
                if record.job is not None:
                    self.jobs[job] = (*self.jobs.get(job, ()), (simulation, attempt))
            case Attached():
                self._begin(RecordedAttempt(simulation=simulation, attempt=attempt, client=record.client))
            case AttemptStarted() if simulation in self.attempts:
                self.attempts[simulation].handle = record.handle
            case AttemptCancelled() if simulation in self.attempts:
                self.attempts[simulation].cancelled = record
            case AttemptEnded() | Failed():
                self.attempts.pop(simulation, None)
                unknown = RecordedAttempt(simulation=simulation, attempt=attempt)
                self.all_attempts.setdefault((simulation, attempt), unknown).end = record
                is_counted = isinstance(record, Failed) and not record.excuse
                self.failures[simulation] = self.failures.get(simulation, 0) + is_counted
                self.reasons[simulation] = record.reason

    def _begin(self, begun: RecordedAttempt) -> None:
        self.attempts[begun.simulation] = self.all_attempts[begun.simulation, begun.attempt] = begun


def entries_of(history: History, now: float) -> list[ScheduledSimulation]:
    """The simulations that run, have failed before or were given up."""
    entries = {
        simulation: ScheduledSimulation(
            id=simulation,
            attempt=history.highest.get(simulation, -1),
            failures=failures,
            reason=history.reasons[simulation],
            has_sent=history.anything_came,
        )
        for simulation, failures in history.failures.items()
    }
    for simulation, reason in history.given_up.items():
        entry = entries.setdefault(
            simulation, ScheduledSimulation(id=simulation, attempt=history.highest.get(simulation, -1))
        )
        entry.state, entry.reason = ScheduledState.GIVEN_UP, reason
    for it in history.attempts.values():
        entry = entries.setdefault(it.simulation, ScheduledSimulation(id=it.simulation, has_sent=history.anything_came))
        entry.state, entry.attempt, entry.has_job = ScheduledState.RUNNING, it.attempt, it.job is not None
        entry.highest_known, entry.client = history.highest[it.simulation], it.client
        entry.started = entry.quiet_since = now
        if it.job is not None:
            entry.job_members = tuple(mate.simulation for mate in history.in_job(it.job))
        if it.cancelled is not None:
            entry.cancelled, entry.reason, entry.excuse = True, it.cancelled.reason, it.cancelled.excuse
        entry.excuse = entry.excuse or (RESTARTED if it.saw_restart else "")
    return list(entries.values())
