"""What the records of a journal add up to. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_server.launcher.processes import Leader
from stream_server.launcher.records import (
    AttemptCancelled,
    AttemptEnded,
    AttemptGiven,
    AttemptStarted,
    AttemptStarting,
    FirstStep,
    GivenUp,
    LauncherLeft,
    LauncherStarted,
    PlanTaken,
    Record,
    ServerEnded,
    ServerProgressed,
    ServerStarted,
    ServerStarting,
)


@dataclass(kw_only=True, slots=True)
class OpenAttempt:
    """An attempt of which no end was written: with `folder` that of a job, without that of the `client` that attached.

    `job` is the folder in which its job runs, with `ranks` ranks for each attempt. `cancelled` if that is to end.
    `saw_restart`: it began under an earlier server.
    """

    simulation: int
    attempt: int
    folder: str | None = None
    client: str = ""
    job: str | None = None
    ranks: int = 1
    public_key: str | None = None
    leader: Leader | None = None
    cancelled: AttemptCancelled | None = None
    saw_restart: bool = False


@dataclass(kw_only=True, slots=True)
class OpenServer:
    """A start of the server of which no end was written."""

    starting: ServerStarting
    leader: Leader | None = None


@dataclass(kw_only=True, slots=True)
class Past:
    """What the launchers before this one knew.

    `highest` has the highest attempt of every simulation and `num_starts` counts the server's starts, over all runs.
    All else is of the last run alone, the one that the `launcher` began which wrote last, or that it resumed. `jobs`
    has all attempts, open or not, of each job that was shared, by its folder. `reasons` tell how the last attempt of a
    simulation ended.
    """

    launcher: LauncherStarted | None = None
    ended_in_order: bool = True
    highest: dict[int, int] = field(default_factory=dict)
    num_starts: int = 0
    epoch: int = 0
    attempts: dict[int, OpenAttempt] = field(default_factory=dict)
    jobs: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
    anything_came: bool = False
    server: OpenServer | None = None
    num_in_a_row: int = 0
    failed_batch: int | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Past":
        """Add them up."""
        past = cls()
        for record in records:
            if isinstance(record, LauncherStarted):
                past = past if record.resumed else past.of_other_runs()
                past.launcher, past.ended_in_order = record, False
            else:
                past._add(record)
        return past

    def in_job(self, job: str) -> list[OpenAttempt]:
        """The attempts of a job of which no end was written."""
        return [it for it in self.attempts.values() if it.job == job]

    def of_other_runs(self) -> "Past":
        """What a new run needs to know of the ones before it."""
        return Past(highest=self.highest, num_starts=self.num_starts)

    def _add(self, record: Record) -> None:
        match record:
            case LauncherLeft():
                self.ended_in_order = True
            case PlanTaken(epoch=epoch):
                for it in self.attempts.values():
                    it.saw_restart |= epoch != self.epoch
                self.epoch = epoch
            case FirstStep():
                self.anything_came = True
            case GivenUp(simulation=simulation, reason=reason):
                self.given_up[simulation] = reason
            case ServerStarting() | ServerStarted() | ServerEnded() | ServerProgressed():
                self._add_of_server(record)
            case AttemptStarting() | AttemptStarted() | AttemptGiven() | AttemptCancelled() | AttemptEnded():
                self._add_of_attempt(record)

    def _add_of_server(self, record: ServerStarting | ServerStarted | ServerEnded | ServerProgressed) -> None:
        match record:
            case ServerStarting():
                self.server = OpenServer(starting=record)
                self.num_starts = max(self.num_starts, record.number)
            case ServerStarted() if self.server is not None:
                self.server.leader = Leader(pid=record.pid, started=record.started)
            case ServerEnded():
                self.server = None
                self.num_in_a_row, self.failed_batch = record.num_in_a_row, record.failed_batch
            case ServerProgressed():
                self.num_in_a_row = 0

    def _add_of_attempt(
        self, record: AttemptStarting | AttemptStarted | AttemptGiven | AttemptCancelled | AttemptEnded
    ) -> None:
        simulation, attempt = record.simulation, record.attempt
        self.highest[simulation] = max(attempt, self.highest.get(simulation, -1))
        match record:
            case AttemptStarting():
                job = record.job or record.folder
                self.attempts[simulation] = OpenAttempt(
                    simulation=simulation,
                    attempt=attempt,
                    folder=record.folder,
                    job=job,
                    ranks=record.ranks,
                    public_key=record.public_key,
                )
                if record.job is not None:
                    self.jobs[job] = (*self.jobs.get(job, ()), (simulation, attempt))
            case AttemptGiven():
                self.attempts[simulation] = OpenAttempt(simulation=simulation, attempt=attempt, client=record.client)
            case AttemptStarted() if simulation in self.attempts:
                self.attempts[simulation].leader = Leader(pid=record.pid, started=record.started)
            case AttemptCancelled() if simulation in self.attempts:
                self.attempts[simulation].cancelled = record
            case AttemptEnded():
                self.attempts.pop(simulation, None)
                self.failures[simulation] = self.failures.get(simulation, 0) + record.counted
                self.reasons[simulation] = record.reason
