"""The watch over the runs below a folder: one thread reads for all pages, what changed and what somebody looks at.

Why: docs/decisions/0083-page-by-bokeh.md
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from stream_server.analysis import live
from stream_server.analysis.growing import GrowingFile
from stream_server.analysis.reading import Line, RunFolder, named, parse_records, paths_of_ranks
from stream_server.analysis.run_status import ORPHANED, RUNNING, RunStatus, damages_of, status_of
from stream_server.analysis.runs import runs_below
from stream_server.analysis.simulations import SimulationSummary, simulations_of
from stream_server.analysis.timeline import AttemptSpan, AttemptTimeline
from stream_server.analysis.validations import RecordedValidation, read_validation, version_of
from stream_server.errors import NotRunning, StreamServerError

LOOK_S = 1.0
LIST_S = 5.0
ASK_S = 1.0
STOP_S = 10.0
# A server that did not answer is left alone for a while, since each question holds up the watch over other runs.
SILENCE_S = 5.0
# A table of simulations costs rank 0 time for each row.
ROWS_PER_S = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """The state of a run at `at_s` seconds since the epoch.

    `ranks` has the newest log point of each rank, and `validation` is the record of the newest one. `problems` tell
    which files are damaged, and `answer` what a study answered to the order to stop.
    """

    at_s: float
    status: RunStatus
    records: Sequence[Line] = ()
    ranks: Mapping[int, Line] = field(default_factory=dict)
    attempts: Sequence[AttemptSpan] = ()
    simulations: Sequence[SimulationSummary] = ()
    validation: RecordedValidation | None = None
    problems: Sequence[str] = ()
    answer: str = ""


class Watch:
    """The newest snapshots of the runs that somebody looks at. Any thread may ask; the watch's own thread reads."""

    def __init__(self, folder: Path, look_s: float = LOOK_S) -> None:
        self.folder = named(folder)
        self._look_s = look_s
        self._changed = threading.Condition()
        self._is_over = False
        self._runs: Mapping[Path, RunStatus] = {}
        self._has_listed = False
        self._unread_folders = ""
        self._snapshots: dict[Path, RunSnapshot] = {}
        self._choices: dict[object, frozenset[Path]] = {}
        self._orders: list[tuple[Path, bool]] = []
        self._watched: dict[Path, _WatchedRun] = {}
        self._thread = threading.Thread(target=self._work, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def runs(self) -> Mapping[Path, RunStatus] | None:
        """The runs below the folder and their states; None until it was looked at."""
        with self._changed:
            return self._runs if self._has_listed else None

    def unread_folders(self) -> str:
        """The folders that were not searched for runs, in words; "" if there are none."""
        with self._changed:
            return self._unread_folders

    def snapshot(self, path: Path) -> RunSnapshot | None:
        """The newest snapshot of a run; None until it was read for the first time."""
        with self._changed:
            return self._snapshots.get(path)

    def choose(self, page: object, paths: frozenset[Path]) -> None:
        """A page looks at these runs from now on, at none with an empty set."""
        with self._changed:
            self._choices[page] = paths
            if not paths:
                del self._choices[page]
            self._changed.notify()

    def stop(self, path: Path, *, finish: bool) -> None:
        """Tell a run that somebody looks at to stop, or to finish; its answer will be in `RunSnapshot.answer`."""
        with self._changed:
            self._orders.append((path, finish))
            self._changed.notify()

    def _work(self) -> None:
        listed_at = -LIST_S
        while True:
            began = time.monotonic()
            if began - listed_at >= LIST_S:
                unread_folders: list[str] = []
                runs = {run.path: status_of(run) for run in runs_below(self.folder, unread_folders.append)}
                listed_at = began
                with self._changed:
                    self._runs, self._has_listed, self._unread_folders = runs, True, " ".join(unread_folders)
            with self._changed:
                chosen = frozenset[Path]().union(*self._choices.values())
                orders, self._orders = self._orders, []
            self._watched = {path: self._watched.get(path) or _WatchedRun(RunFolder(path)) for path in chosen}
            for path, finish in orders:
                if path in self._watched:
                    self._watched[path].stop(finish=finish)
            snapshots = {path: watched.look() for path, watched in self._watched.items()}
            with self._changed:
                self._snapshots = snapshots
                left_s = max(self._look_s - (time.monotonic() - began), self._look_s / 4)
                self._changed.wait_for(self._is_awaited, left_s)
                if self._is_over:
                    return

    def _is_awaited(self) -> bool:
        return (
            self._is_over
            or bool(self._orders)
            or any(path not in self._snapshots for chosen in self._choices.values() for path in chosen)
        )


class _WatchedRun:
    """Reads one run again and again. The watch's thread only."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._records = _metrics(run.metrics / "metrics.jsonl")
        self._ranks: dict[int, GrowingFile[Line]] = {}
        self._attempts = AttemptTimeline(run)
        self._latest = RunSnapshot(at_s=0.0, status=status_of(run))
        self._ask_at = 0.0
        self._table_at = 0.0
        self._table_of: Any = None
        self._validation: RecordedValidation | None = None
        self._validation_of: object = None
        self._answer = ""

    def look(self) -> RunSnapshot:
        """The snapshot as of now; of a file that is damaged what was read before."""
        status = status_of(self.run)
        problems: list[str] = []
        with note_problems(problems):
            problems += damages_of(self.run)
        with note_problems(problems):
            self._records.update()
        with note_problems(problems):
            for rank, path in paths_of_ranks(self.run).items():
                self._ranks.setdefault(rank, _metrics(path)).update()
        attempts, simulations = self._latest.attempts, self._latest.simulations
        with note_problems(problems):
            attempts = self._attempts.update(is_live=status.is_live)
        with note_problems(problems):
            status, simulations = self._ask(status) if status.is_live else (status, self._of_files(status))
        with note_problems(problems):
            if (version := version_of(self.run)) != self._validation_of:
                self._validation, self._validation_of = read_validation(self.run), version
        self._latest = RunSnapshot(
            at_s=time.time(),
            status=status,
            records=tuple(self._records.items),
            ranks={rank: file.items[-1] for rank, file in sorted(self._ranks.items()) if file.items},
            attempts=attempts,
            simulations=simulations,
            validation=self._validation,
            problems=problems,
            answer=self._answer,
        )
        return self._latest

    def stop(self, *, finish: bool) -> None:
        """Give the order, and keep its answer."""
        try:
            self._answer = live.stop(self.run, STOP_S, finish=finish)
        except NotRunning as error:
            self._answer = str(error)

    def _ask(self, status: RunStatus) -> tuple[RunStatus, Sequence[SimulationSummary]]:
        """The answers of its server, as long as that is there; otherwise what is known of its simulations."""
        simulations = self._latest.simulations
        now = time.monotonic()
        if status.state not in (RUNNING, ORPHANED) or now < self._ask_at:
            return status, simulations or self._of_files(status)
        try:
            status = replace(status, server=live.ask_server(self.run, ASK_S))
            if now >= self._table_at:
                simulations = live.ask_simulations(self.run, ASK_S)
                self._table_at = now + max(2 * LOOK_S, len(simulations) / ROWS_PER_S)
        except NotRunning:
            self._ask_at = time.monotonic() + SILENCE_S
            return replace(status, server=None), simulations or self._of_files(status)
        self._table_of = None
        return status, simulations

    def _of_files(self, status: RunStatus) -> Sequence[SimulationSummary]:
        """The simulations as files tell, which is read again only when the end of the run is another one."""
        table_of = (status.state, status.detail)
        if table_of == self._table_of:
            return self._latest.simulations
        self._table_of = table_of
        return simulations_of(self.run)


def _metrics(path: Path) -> GrowingFile[Line]:
    return GrowingFile(path, lambda lines, first: parse_records(lines, path, first))


@contextmanager
def note_problems(problems: list[str]) -> Iterator[None]:
    """Note what is wrong with a file, and go on: reading a damaged one can raise any exception."""
    try:
        yield
    except (StreamServerError, OSError) as error:
        problems.append(str(error))
    except Exception as error:
        problems.append(f"{type(error).__name__}: {error}")
