"""The attempts of the simulations of a run, as the launchers' journal and the times of their files tell."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stream_server.analysis.growing import GrowingFile
from stream_server.analysis.reading import RunFolder
from stream_server.launcher.backends.backend import EXIT_FILE, LOG_FILE, WORKER_END_FILE, WORKER_START_FILE
from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import JOURNAL_FILE
from stream_server.launcher.journal.records import DamagedJournal
from stream_server.messages.launcher_link import Attached, Failed

RUNNING = "running"
ENDED = "ended"
CANCELLED = "cancelled"
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFacts:
    """One attempt: running, ended, cancelled, failed, or interrupted by the end of its launcher.

    Times are seconds since the epoch, None where no folder is left that tells; `ended_s` is None while it runs.
    """

    simulation: int
    attempt: int
    state: str = RUNNING
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""


class AttemptHistory:
    """The attempts of a run in the order in which they began, followed in its journal."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._file = GrowingFile(run.path / JOURNAL_FILE, lambda lines, _: list(records.decode(lines)))
        self._begin(0)

    def _begin(self, num_resets: int) -> None:
        self._num_resets, self._num_read = num_resets, 0
        self._known: dict[tuple[int, int], AttemptFacts] = {}
        self._open: set[tuple[int, int]] = set()

    def update(self, *, is_live: bool) -> list[AttemptFacts]:
        """All of them as they are now; in a run that is not live none runs.

        Raises:
            DamagedJournal: a line of the journal is damaged.
        """
        self._file.update()
        if self._file.num_resets != self._num_resets:
            self._begin(self._file.num_resets)
        self._take(self._file.items[self._num_read :])
        self._num_read = len(self._file.items)
        for key in sorted(self._open):
            folder = self._folder(key)
            if (folder / EXIT_FILE).exists() or (folder / WORKER_END_FILE).exists():
                # Of a simulation that is finished already when its job ends, the journal does not say that it did.
                self._end(key, ENDED, "")
            elif self._known[key].started_s is None:
                self._known[key] = replace(self._known[key], started_s=span_of(folder).started_s)
        if is_live:
            return list(self._known.values())
        # They may go on under the next launcher, which takes over what runs: what is known of them stays.
        return [self._ended(key, INTERRUPTED, "") if key in self._open else it for key, it in self._known.items()]

    def _take(self, new: Iterable[records.JournalRecord]) -> None:
        for record in new:
            match record:
                case (
                    records.AttemptStarting(simulation=simulation, attempt=attempt)
                    | Attached(simulation=simulation, attempt=attempt)
                ):
                    self._known[simulation, attempt] = AttemptFacts(simulation=simulation, attempt=attempt)
                    self._open.add((simulation, attempt))
                case records.AttemptCancelled(simulation=simulation, attempt=attempt, reason=reason):
                    self._change((simulation, attempt), state=CANCELLED, reason=reason)
                case records.AttemptEnded(simulation=simulation, attempt=attempt, reason=reason):
                    self._end((simulation, attempt), ENDED, reason)
                case Failed(simulation=simulation, attempt=attempt, reason=reason):
                    self._end((simulation, attempt), FAILED, reason)
                case records.LauncherLeft():
                    self._end_all(INTERRUPTED, "")
                case records.LauncherStarted(resumed=False):
                    self._end_all(INTERRUPTED, "")

    def _change(self, key: tuple[int, int], *, state: str, reason: str) -> None:
        if key in self._known:
            self._known[key] = replace(self._known[key], state=state, reason=reason)

    def _end(self, key: tuple[int, int], state: str, reason: str) -> None:
        if key in self._known:
            self._open.discard(key)
            self._known[key] = self._ended(key, state, reason)

    def _ended(self, key: tuple[int, int], state: str, reason: str) -> AttemptFacts:
        known, folder = self._known[key], self._folder(key)
        if known.state == CANCELLED:
            state, reason = CANCELLED, known.reason
        span = span_of(folder)
        started_s = span.started_s if known.started_s is None else known.started_s
        ended_s = None if started_s is None else max(started_s, span.ended_s or started_s)
        return replace(known, state=state, reason=reason, started_s=started_s, ended_s=ended_s)

    def _end_all(self, state: str, reason: str) -> None:
        for key in list(self._open):
            self._end(key, state, reason)

    def _folder(self, key: tuple[int, int]) -> Path:
        simulation, attempt = key
        return self._run.path / "simulations" / str(simulation) / f"attempt-{attempt}"


def newest_failures(run: RunFolder, *, is_live: bool) -> dict[int, str]:
    """The newest failed attempt of each simulation that had one, in words, however the simulation ended."""
    try:
        attempts = AttemptHistory(run).update(is_live=is_live)
    except (OSError, DamagedJournal):
        return {}
    return {it.simulation: f"attempt {it.attempt} {it.reason}" for it in attempts if it.state == FAILED}


class Span(NamedTuple):
    """The time from the first file of an attempt to its last one, in seconds since the epoch; None where none tells."""

    started_s: float | None
    ended_s: float | None


def span_of(folder: Path) -> Span:
    """The span of the attempt with this folder; one to which its worker has not come has none."""
    try:
        now = time.time()
        # Not those of what a link leads to: the output of a worker is in the folder of its first simulation.
        times = {it.name: min(it.lstat().st_mtime, now) for it in folder.iterdir()}
        has_worker_of_another = (folder / LOG_FILE).is_symlink()
    except OSError:
        return Span(None, None)
    if not times or (has_worker_of_another and WORKER_START_FILE not in times):
        return Span(None, None)
    first, last = min(times.values()), max(times.values())
    return Span(times.get(WORKER_START_FILE, first), times.get(WORKER_END_FILE, last))
