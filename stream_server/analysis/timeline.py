"""The attempts of the simulations of a run, as the launchers' journal and the times of their files tell."""

import time
from dataclasses import dataclass
from pathlib import Path

from stream_server.analysis.growing import MAX_FOLLOWED_BYTES, GrowingFile
from stream_server.analysis.reading import RunFolder
from stream_server.errors import StreamServerError
from stream_server.launcher.backends.backend import EXIT_FILE, LOG_FILE, WORKER_END_FILE, WORKER_START_FILE
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import ENDED, FAILED, INTERRUPTED, RUNNING, History, RecordedAttempt
from stream_server.machine.run_folder import JOURNAL_FILE, attempt_folder
from stream_server.storage.disk import by_own_links, read_file
from stream_server.storage.lines import whole_lines


def journal_of(run: RunFolder) -> list[records.JournalRecord]:
    """The records in the journal of a run; none if it has none.

    Raises:
        OSError, DamagedJournal: it cannot be read.
    """
    try:
        content = read_file(run.path / JOURNAL_FILE, max_bytes=MAX_FOLLOWED_BYTES, opener=by_own_links)
    except FileNotFoundError:
        return []
    return list(records.decode(whole_lines(content)))


def history_of(run: RunFolder) -> History:
    """The history in the journal of a run; an empty one if it cannot be read."""
    try:
        return History.of(journal_of(run))
    except (OSError, StreamServerError):
        return History()


def newest_failures(run: RunFolder) -> dict[int, str]:
    """The newest failed attempt of each simulation that had one, in words, however the simulation ended."""
    attempts = history_of(run).all_attempts.items()
    return {
        simulation: f"attempt {number} {attempt.attempt.reason}"
        for (simulation, number), attempt in attempts
        if attempt.state == FAILED
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptSpan:
    """One attempt, see `RecordedAttempt`, and its time.

    Times are seconds since the epoch, None where no folder is left that tells; `ended_s` is None while it runs.
    """

    simulation: int
    attempt: int
    state: str = RUNNING
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""


class AttemptTimeline:
    """The attempts of a run in the order in which they began, followed in its journal."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._file = GrowingFile(run.path / JOURNAL_FILE, lambda lines, _: list(records.decode(lines)))
        self._begin(0)

    def _begin(self, num_resets: int) -> None:
        self._num_resets, self._num_read = num_resets, 0
        self._history = History()
        self._started: dict[tuple[int, int], float] = {}
        self._over: dict[tuple[int, int], AttemptSpan] = {}
        self._left: set[tuple[int, int]] = set()

    def update(self, *, is_live: bool) -> list[AttemptSpan]:
        """All of them as they are now; in a run that is not live none runs.

        Raises:
            DamagedJournal: a line of the journal is damaged.
        """
        self._file.update()
        if self._file.num_resets != self._num_resets:
            self._begin(self._file.num_resets)
        for record in self._file.items[self._num_read :]:
            self._history = self._history.after(record)
        self._num_read = len(self._file.items)
        return [self._span(attempt, is_live=is_live) for attempt in self._history.all_attempts.values()]

    def _span(self, recorded: RecordedAttempt, *, is_live: bool) -> AttemptSpan:
        key = simulation, number = recorded.key
        folder = attempt_folder(self._run.path, simulation, number)
        is_over = recorded.end is not None or recorded.interrupted or key in self._left
        if not is_over and ((folder / EXIT_FILE).exists() or (folder / WORKER_END_FILE).exists()):
            # Of a simulation that is finished already when its job ends, the journal does not say that it did.
            self._left.add(key)
            is_over = True
        state = recorded.state
        if state == RUNNING:
            # They may go on under the next launcher, which takes over what runs.
            state = ENDED if is_over else RUNNING if is_live else INTERRUPTED
        known = self._over.get(key)
        if known is not None and (known.state, known.reason) == (state, recorded.attempt.reason):
            return known
        started_s, ended_s, has_ended = self._started.get(key), None, is_over or not is_live
        if has_ended or started_s is None:
            first_s, last_s = span_of(folder)
            started_s = first_s if started_s is None else started_s
            ended_s = max(started_s, last_s or started_s) if has_ended and started_s is not None else None
        span = AttemptSpan(
            simulation=simulation,
            attempt=number,
            state=state,
            started_s=started_s,
            ended_s=ended_s,
            reason=recorded.attempt.reason,
        )
        if started_s is not None:
            self._started[key] = started_s
        if is_over:
            self._over[key] = span
        return span


def span_of(folder: Path) -> tuple[float | None, float | None]:
    """The times of the first and the last file of an attempt, in seconds since the epoch; None where none tells.

    One to which its worker has not come has none.
    """
    try:
        now = time.time()
        # Links are not followed: the output of a worker is in the folder of its first simulation.
        times = {entry.name: min(entry.lstat().st_mtime, now) for entry in folder.iterdir()}
        has_worker_of_another = (folder / LOG_FILE).is_symlink()
    except OSError:
        return None, None
    if not times or (has_worker_of_another and WORKER_START_FILE not in times):
        return None, None
    first, last = min(times.values()), max(times.values())
    return times.get(WORKER_START_FILE, first), times.get(WORKER_END_FILE, last)
