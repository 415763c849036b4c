"""The state of a run as its folder tells: who runs it, how it ended, its newest checkpoint, its simulations."""

import csv
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Annotated, Any, TypeVar

from stream_server.analysis.attempts import ENDED, INTERRUPTED, span_of
from stream_server.analysis.growing import MAX_FOLLOWED_BYTES, PIECE_BYTES
from stream_server.analysis.reading import RunFolder, find_run, named
from stream_server.config.parameters import ID_COLUMN, ORIGIN_COLUMNS
from stream_server.errors import EXIT_SAVED, ConfigError, DamagedCheckpoint, NotRunning, StreamServerError
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import JOURNAL_FILE
from stream_server.machine.run_folder import was_set_aside
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, holder_of
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.storage.checksums import parse_checksummed_json
from stream_server.storage.disk import MAX_TABLE_BYTES, MAX_TEXT_BYTES, by_own_links, names_in, read_file, read_text
from stream_server.storage.lines import whole_lines
from stream_server.storage.ownership import is_ours
from stream_server.storage.plain_state import read_state
from stream_server.storage.typed import Length, Range, typed

STARTING = "starting"
RUNNING = "running"
RESTARTING = "restarting"
ORPHANED = "orphaned"
FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"
KILLED = "killed"
UNKNOWN = "unknown"
UNREADABLE = "unreadable"
LIVE = (STARTING, RUNNING, RESTARTING, ORPHANED)
REPLAYED = "replayed"
LAUNCHER = "stream-launcher"
OUTPUT_LOG = "output.log"
# What a run has, beside its study.json, from its first moments on.
MARKS = (RUN_LOCK, "report.json", "checkpoints", "metrics")
MAX_DEPTH = 6
# To look at each takes some 50 µs on a disk, and more on a network file system.
MAX_FOLDERS = 100_000
MAX_CHARACTERS = 2000
MAX_SIMULATIONS = 1_000_000
MAX_MANIFESTS = 100
Count = Annotated[int, Range(0, 1 << 62)]

T = TypeVar("T")

_CHECKPOINT = re.compile(r"\d{6,}")
_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Manifest:
    """The part of a checkpoint's manifest that is read here; anybody may have written it."""

    checkpoint: Count
    batches: Count
    incarnation: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class _Report:
    """The same of report.json and exit.json: all that is shown of them."""

    exit_code: int | None = None
    exit_reason: str | None = None
    message: str | None = None
    balanced: bool | None = None
    unbalanced: tuple[str, ...] = ()
    ranks: Count = 0
    restarts: Count = 0
    batches: Count = 0
    wall_s: Annotated[float, Range(0, 1e12)] | None = None
    simulations: Annotated[dict[str, Count], Length(0, 100)] = field(default_factory=dict)
    samples: dict[str, Count | dict[str, Count] | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A committed checkpoint, as its manifest describes it; `age_s` is the time since then."""

    number: int
    batches: int
    incarnation: int
    age_s: float
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """The state of a run.

    `state` is one of starting and restarting (stream-launcher runs, its server does not, for the first time or any
    more), running, orphaned (its server runs, stream-launcher does not any more), finished, stopped (to be continued),
    failed, killed, unknown to a user who may only read it, and unreadable; `detail` tells more. `report` is the
    report.json of a run that has ended.
    """

    state: str
    detail: str
    checkpoint: SavedCheckpoint | None
    report: dict[str, Any]

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationFacts:
    """One row of the table of simulations; `seconds` of its newest attempt, None where no folder of it is left.

    `error` is that of the model on it in the newest validation, None of one that is trained on.
    """

    simulation: int
    parameters: dict[str, float]
    state: str
    attempts: int
    seconds: float | None
    received: int | None
    reason: str
    error: float | None = None


def the_run(path: Path) -> RunFolder:
    """The run that a user means by this path.

    Raises:
        NotRunning: there is none.
    """
    path = named(path)
    # One that begins has a lock before it has a study.json.
    if is_run(path) or (path.is_dir() and holder_of(path / RUN_LOCK) is not None):
        return RunFolder(path)
    try:
        return find_run(path)
    except ConfigError as error:
        raise NotRunning(str(error)) from error


def is_run(path: Path) -> bool:
    """Whether this is the output folder of a run."""
    return (path / "study.json").is_file() and any((path / mark).exists() for mark in MARKS)


def runs_below(folder: Path, tell: Callable[[str], None]) -> list[RunFolder]:
    """The runs in a folder and the folders below it, by name; none in those that may not be read.

    Each folder is looked at once, however many links lead to it, and a link of somebody else's is not followed. No more
    than MAX_FOLDERS are, the nearest first and of these the user's own; if there are more, `tell` is called with words.
    """
    found: list[Path] = []
    seen = set[tuple[int, int]]()
    level: Iterable[Path] = [named(folder)]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for path, place in _own_first(level):
            if place in seen:
                continue
            if len(seen) == MAX_FOLDERS:
                tell(
                    f"{folder} has more than {MAX_FOLDERS:,} folders below it, and no run was looked for in those that "
                    "are furthest down: name a folder nearer to yours"
                )
                return [RunFolder(path) for path in sorted(found)]
            seen.add(place)
            with suppress(OSError):
                if is_run(path):
                    found.append(path)
                else:
                    below += islice(_folders_in(path), MAX_FOLDERS + 1 - len(below))
        level = below
    return [RunFolder(path) for path in sorted(found)]


def _own_first(folders: Iterable[Path]) -> list[tuple[Path, tuple[int, int]]]:
    """The folders that are there, each with what tells it from all others, whatever leads to it."""
    known: list[tuple[bool, Path, tuple[int, int]]] = []
    for path in folders:
        with suppress(OSError):
            status = path.stat()
            known.append((not is_ours(status), path, (status.st_dev, status.st_ino)))
    return [(path, place) for _, path, place in sorted(known)]


def _folders_in(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and _may_have_runs(entry):
                yield folder / entry.name


def _may_have_runs(entry: "os.DirEntry[str]") -> bool:
    if entry.is_symlink():
        return is_ours(entry.stat(follow_symlinks=False)) and entry.is_dir()
    return entry.is_dir()


def state_of(run: RunFolder) -> RunState:
    """The state of a run, live or dead."""
    try:
        return _state_of(run)
    except OSError as error:
        return RunState(state=UNREADABLE, detail=str(error), checkpoint=None, report={})


def _state_of(run: RunFolder) -> RunState:
    checkpoint = newest_checkpoint(run)
    try:
        holder, server = holder_of(run.path / RUN_LOCK), holder_of(run.path / SERVER_LOCK)
    except PermissionError:
        # A user who may read a lock could hold it: it is not shared with the group.
        detail = "only its owner can see whether it runs"
        return RunState(state=UNKNOWN, detail=detail, checkpoint=checkpoint, report=_report(run.path / "report.json"))
    if holder is not None:
        has_server = holder.program != LAUNCHER or server is not None
        return RunState(
            state=RUNNING if has_server else RESTARTING if _had_a_server(run) else STARTING,
            detail=str(holder),
            checkpoint=checkpoint,
            report={},
        )
    if server is not None:
        detail = f"{server}; stream-launcher is gone: run the same command again, it takes this server over"
        return RunState(state=ORPHANED, detail=detail, checkpoint=checkpoint, report={})
    report, failure = _report(run.path / "report.json"), _report(run.path / "exit.json")
    state, detail = _end(report, failure)
    if state != FINISHED and _was_set_aside(run):
        detail = f"{detail}; it was set aside by --fresh: no start continues it"
    elif state != FINISHED:
        then = (
            f"goes on from checkpoint {checkpoint.number}"
            if checkpoint
            else "starts over, because there is no checkpoint"
        )
        retry = ", and --retry tries simulations again that were given up" if _has_given_up(report) else ""
        detail = f"{detail}; run again, it {then}{retry}"
    return RunState(state=state, detail=detail, checkpoint=checkpoint, report=report)


def balance_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether the account balances; a run that failed is not called balanced, even if its account is."""
    if not report.get("balanced"):
        return [("account", "NOT BALANCED")]
    return [("account", "balanced")] if report.get("exit_code") in (0, EXIT_SAVED) else []


def damages_of(run: RunFolder) -> list[str]:
    """The JSON files of a run that are there and cannot be read."""
    study, *reports = (run.path / name for name in ("study.json", "report.json", "exit.json"))
    damaged = [path for path in (study,) if path.exists() and not _read(path)]
    damaged += [path for path in reports if path.exists() and not _report(path)]
    return [f"{path} is damaged: it is no JSON object as a study writes it" for path in damaged]


def newest_checkpoint(run: RunFolder) -> SavedCheckpoint | None:
    """The newest committed checkpoint, of the newest MAX_MANIFESTS, whose manifest can be read."""
    folder = checkpoints(run)
    names = [it.name for it in folder.iterdir() if _CHECKPOINT.fullmatch(it.name)] if folder.is_dir() else []
    for name in sorted(names, key=int, reverse=True)[:MAX_MANIFESTS]:
        manifest = folder / name / "manifest.json"
        try:
            plain = parse_checksummed_json(read_file(manifest, max_bytes=MAX_TEXT_BYTES, opener=by_own_links))
            saved = _known(_Manifest, plain)
            return SavedCheckpoint(
                number=saved.checkpoint,
                batches=saved.batches,
                incarnation=saved.incarnation,
                age_s=max(0.0, time.time() - manifest.stat().st_mtime),
                path=folder / name,
            )
        except (OSError, ValueError, TypeError, RecursionError):
            continue
    return None


def checkpoints(run: RunFolder) -> Path:
    """The folder of its checkpoints."""
    settings = _read(run.path / "study.json").get("checkpoint")
    elsewhere = settings.get("dir") if isinstance(settings, dict) else None
    return named(Path(elsewhere)) if isinstance(elsewhere, str) else run.path / "checkpoints"


def simulations_of(run: RunFolder) -> list[SimulationFacts]:
    """The simulations of a dead run: what its newest checkpoint knows, then the journal, then their folders.

    Those of a replay are `replayed`: it has read their samples and run none.
    """
    saved, is_replay = _saved_roster(newest_checkpoint(run))
    history = _history(run)
    # Of a million simulations few may have been started: each is asked for only if something is there.
    with_folders = set(names_in(run.path / "simulations"))
    facts = []
    for simulation, parameters in _parameters(run).items():
        entry = saved.get(simulation, {})
        has_folder = str(simulation) in with_folders
        num_left = num_attempts(run, simulation) if has_folder else 0
        attempts = max(num_left, history.highest.get(simulation, -1) + 1)
        state = entry.get("state", REPLAYED if is_replay else SimulationPhase.WAITING.value)
        if simulation in history.given_up:
            state = SimulationPhase.GIVEN_UP.value
        elif state == SimulationPhase.RUNNING or (state == SimulationPhase.WAITING and attempts):
            # The next start of the study tries it again, as it does one that failed and is not given up.
            # One whose attempt has ended may have finished: no checkpoint knows what came of it.
            state = "failed" if simulation in history.failed else ENDED if simulation in history.ended else INTERRUPTED
        reason = entry.get("reason") or history.given_up.get(simulation, "")
        if state in ("failed", INTERRUPTED, ENDED):
            reason = history.reasons.get(simulation, "")
        if state == ENDED:
            reason = f"{reason}, but its end is in no checkpoint: when the study goes on, it is run again"
        facts.append(
            SimulationFacts(
                simulation=simulation,
                parameters=parameters,
                state=state,
                attempts=attempts,
                seconds=seconds_of(run, simulation, is_running=False) if has_folder else None,
                received=entry.get("num_settled"),
                reason=reason,
            )
        )
    return facts


def num_attempts(run: RunFolder, simulation: int) -> int:
    """How many attempts have left a folder, or were numbered before one that has."""
    return 1 + max((number for number, _ in attempt_folders(run, simulation)), default=-1)


def attempt_folders(run: RunFolder, simulation: int) -> list[tuple[int, Path]]:
    """The folders of the attempts that are still there, by number."""
    folder = run.path / "simulations" / str(simulation)
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(match[1]), it) for it in entries if (match := _ATTEMPT.fullmatch(it.name)))


def seconds_of(run: RunFolder, simulation: int, *, is_running: bool) -> float | None:
    """The time that the newest attempt has taken, as the times of its files tell; None without a folder."""
    folders = attempt_folders(run, simulation)
    span = span_of(folders[-1][1]) if folders else None
    if span is None or span.started_s is None or span.ended_s is None:
        return None
    return max(0.0, (time.time() if is_running else span.ended_s) - span.started_s)


def _was_set_aside(run: RunFolder) -> bool:
    study = _read(run.path / "study.json").get("study")
    output_dir = study.get("output_dir") if isinstance(study, dict) else None
    return isinstance(output_dir, str) and was_set_aside(run.path, Path(output_dir))


def _has_given_up(report: Mapping[str, Any]) -> bool:
    simulations = report.get("simulations")
    return isinstance(simulations, Mapping) and bool(simulations.get(SimulationPhase.GIVEN_UP))


def _had_a_server(run: RunFolder) -> bool:
    """Whether the launcher that holds the run has had a server: each writes itself into the file of its lock."""
    try:
        return (run.path / SERVER_LOCK).stat().st_mtime_ns >= (run.path / RUN_LOCK).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _end(report: dict[str, Any], failure: dict[str, Any]) -> tuple[str, str]:
    code, message = report.get("exit_code"), str(report.get("message") or "")[:MAX_CHARACTERS]
    if code == 0:
        reason = str(report.get("exit_reason") or FINISHED)[:MAX_CHARACTERS]
        return FINISHED, message if reason == FINISHED else f"{reason}: {message}"
    if code == EXIT_SAVED:
        return STOPPED, message
    if code is not None or failure:
        number = failure.get("exit_code") if code is None else code
        told = message or str(failure.get("message") or "")[:MAX_CHARACTERS]
        return FAILED, f"exit code {number}: {told}".partition("\n")[0]
    return KILLED, "it left no report: it was killed, or stopped before training began"


def _saved_roster(checkpoint: SavedCheckpoint | None) -> tuple[dict[int, dict[str, Any]], bool]:
    """The simulations that a checkpoint knows, and whether it is one of a replay, which has none of its own."""
    if checkpoint is None:
        return {}, False
    try:
        roster = read_state(checkpoint.path / "study.state", opener=by_own_links).get("roster")
        return {} if roster is None else _simulations(roster["simulations"]), roster is None
    except (OSError, DamagedCheckpoint, LookupError, TypeError, ValueError, AttributeError):
        # The checkpoint of a run that goes on may have just been removed.
        return {}, False


def _simulations(saved: dict[str, Any]) -> dict[int, dict[str, Any]]:
    columns = (saved[column].tolist() for column in ("simulations", "phase", "num_settled"))
    return {
        simulation: {
            "state": saved["phases"][phase],
            "num_settled": num_settled,
            "reason": saved["reasons"].get(simulation, ""),
        }
        for simulation, phase, num_settled in zip(*columns, strict=True)
    }


def _history(run: RunFolder) -> History:
    try:
        content = read_file(run.path / JOURNAL_FILE, max_bytes=MAX_FOLLOWED_BYTES, opener=by_own_links)
        return History.of(records.decode(whole_lines(content)))
    except (OSError, StreamServerError):
        return History()


def _parameters(run: RunFolder) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    try:
        with open(run.path / "parameters.csv", newline="", encoding="utf-8", opener=by_own_links) as file:
            if os.fstat(file.fileno()).st_size > MAX_TABLE_BYTES:
                return {}
            rows = csv.reader(iter(lambda: file.readline(PIECE_BYTES), ""))
            names = [intern(name) for name in next(rows, [])]
            shown = [place for place, name in enumerate(names) if name not in (ID_COLUMN, *ORIGIN_COLUMNS)]
            place_of_id = names.index(ID_COLUMN)
            for row in rows:
                found[int(row[place_of_id])] = {names[place]: float(row[place]) for place in shown}
                if len(found) > MAX_SIMULATIONS:
                    return {}
    except (OSError, ValueError, IndexError, csv.Error):
        return {}
    return found


def _report(path: Path) -> dict[str, Any]:
    """A report whose values have the types that a study writes; empty if it is damaged or not there."""
    plain = _read(path)
    try:
        _known(_Report, plain)
    except TypeError:
        return {}
    return plain


def _known(cls: type[T], plain: Any) -> T:
    """Read a JSON object as a `cls`, which need not know all of its keys.

    Raises:
        TypeError: it is none, or something is missing or of another type.
    """
    names = {it.name for it in fields(cls)}  # type: ignore[arg-type]
    return typed(cls, {name: it for name, it in plain.items() if name in names} if isinstance(plain, dict) else plain)


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(read_text(path, opener=by_own_links))
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}
