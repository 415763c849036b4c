"""The status of a run: who runs it, how it is doing, how it ended, and its newest checkpoint."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, convert, to_builtins

from stream_server.analysis.reading import RunFolder, named, read_object
from stream_server.errors import EXIT_SAVED
from stream_server.machine.run_folder import was_set_aside
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, holder_of
from stream_server.messages.operator import Change, StudyStatus, newest_changes
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.storage.checksums import parse_checksummed_json
from stream_server.storage.disk import MAX_TEXT_BYTES, by_own_links, read_file
from stream_server.wording import counted

MAX_WIDTH = 14

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
LAUNCHER = "stream-launcher"
# A training that was not heard of for longer is called busy.
BUSY_S = 20.0
MAX_CHARACTERS = 2000
MAX_MANIFESTS = 100
Count = Annotated[int, Meta(ge=0, le=1 << 62)]

_CHECKPOINT = re.compile(r"\d{6,}")


class Summary:
    """Rows of a name and a text. `str()` gives lines, and a notebook shows a table."""

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self.title = title
        self.rows = tuple((name, text) for name, text in rows if name or text)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.rows)

    def __str__(self) -> str:
        return "\n".join(f"{name:<{MAX_WIDTH}}{text}".rstrip() for name, text in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{_lines(text)}</td></tr>'
            for name, text in self.rows
        )
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"


def _lines(text: str) -> str:
    if "\n" in text:
        return f'<pre style="margin:0">{escape(text)}</pre>'
    return escape(text)


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
    changes: tuple[Change, ...] = ()
    batches: Count = 0
    wall_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    simulations: Annotated[dict[str, Count], Meta(max_length=100)] = field(default_factory=dict)
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


@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class RunStatus:
    """The status of a run at one moment. `str()` gives lines, and a notebook shows a table.

    Attributes:
        run: its folder.
        state: starting and restarting (stream-launcher runs, its server does not, for the first time or any more),
            running, orphaned (its server runs, stream-launcher does not any more), finished, stopped (to be continued),
            failed, killed, unknown to a user who may only read it, and unreadable.
        detail: who runs it, or how it ended.
        checkpoint: the newest one that was committed.
        report: the report.json of a run that has ended.
        server: the answer of the server of a live run, None if it was not asked or did not answer.
        silence: why it did not answer; "" if it did or was not asked.
        exit_code: that of stream-launcher or of the server; None while it runs, and where nobody is left to tell.
        log: the last lines that it wrote, of a run that ended otherwise than by finishing.
    """

    run: RunFolder
    state: str
    detail: str
    checkpoint: SavedCheckpoint | None = None
    report: dict[str, Any] = field(default_factory=dict)
    server: StudyStatus | None = None
    silence: str = ""
    exit_code: int | None = None
    log: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the run goes on, or is being started."""
        return self.state in LIVE

    @property
    def exit_reason(self) -> str:
        """Why the training ended, as report.json says it, such as "finished" or "saved"; "" without a report."""
        return str(self.report.get("exit_reason", ""))

    def after(self, exit_code: int | None, log: str) -> "RunStatus":
        """The same once its stream-launcher has ended, if this process has started and outlived it.

        The exit code may contradict report.json, which is then of an earlier start: this one failed before it wrote
        its own.
        """
        if self.state == ORPHANED or (self.is_live and exit_code is None):
            return self
        if exit_code is None:
            log = "" if self.state == FINISHED else log
            return replace(self, exit_code=self.report.get("exit_code"), log=log)
        state = KILLED if exit_code < 0 else {0: FINISHED, EXIT_SAVED: STOPPED}.get(exit_code, FAILED)
        ended = replace(self, exit_code=exit_code, log="" if state == FINISHED else log)
        if state == self.state:
            return ended
        lines = [line for line in log.splitlines() if line.strip()]
        detail = f"exit code {exit_code}: {lines[-1] if lines else 'it wrote nothing'}"
        return replace(ended, state=state, detail=detail, report={}, server=None)

    def to_json(self) -> dict[str, Any]:
        """All that `stream-study status --json` prints, with "server" of a live run and "report" of an ended one."""
        saved = self.checkpoint
        return {
            "run": str(self.run.path),
            "state": self.state,
            "detail": self.detail,
            "checkpoint": saved and {"number": saved.number, "batches": saved.batches, "age_s": round(saved.age_s, 1)},
            **({"server": _facts_of(self.server)} if self.server else {}),
            **({"silence": self.silence} if self.silence else {}),
            **({"report": self.report} if self.report else {}),
        }

    def rows(self) -> list[tuple[str, str]]:
        """The status for people: names and texts."""
        saved, text = self.checkpoint, "none yet"
        if saved:
            text = f"{saved.number}, after {counted(saved.batches, 'batch')}, {duration(saved.age_s)} ago"
        rows = _server_rows(self.server) if self.server else _report_rows(self.report) if self.report else []
        rows = [
            ("run", str(self.run.path)),
            ("state", self.state),
            ("", self.detail),
            *rows,
            ("checkpoint", text),
            ("no answer", self.silence),
            ("exit code", "" if self.exit_code is None else str(self.exit_code)),
            ("log", self.log),
        ]
        return [(name, text) for name, text in rows if text]

    def __str__(self) -> str:
        return str(self._summary())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._summary()._repr_html_()

    def _summary(self) -> Summary:
        return Summary(str(self.run.path), self.rows())


def status_of(run: RunFolder) -> RunStatus:
    """The status of a run, live or dead, as its files tell."""
    try:
        return _status_of(run)
    except OSError as error:
        return RunStatus(run=run, state=UNREADABLE, detail=str(error))


def _status_of(run: RunFolder) -> RunStatus:
    checkpoint = newest_checkpoint(run)
    status = partial(RunStatus, run=run, checkpoint=checkpoint)
    try:
        holder, server = holder_of(run.path / RUN_LOCK), holder_of(run.path / SERVER_LOCK)
    except PermissionError:
        # A user who may read a lock could hold it: it is not shared with the group.
        detail = "only its owner can see whether it runs"
        return status(state=UNKNOWN, detail=detail, report=_report(run.path / "report.json"))
    if holder is not None:
        has_server = holder.program != LAUNCHER or server is not None
        state = RUNNING if has_server else RESTARTING if _had_a_server(run) else STARTING
        return status(state=state, detail=str(holder))
    if server is not None:
        detail = f"{server}; stream-launcher is gone: run the same command again, it takes this server over"
        return status(state=ORPHANED, detail=detail)
    report, failure = _report(run.path / "report.json"), _report(run.path / "exit.json")
    state, detail = _end(report, failure)
    output_dir = _path_in(run, "study", "output_dir")
    if state != FINISHED and output_dir is not None and was_set_aside(run.path, output_dir):
        detail = f"{detail}; it was set aside by --fresh: no start continues it"
    elif state != FINISHED:
        then = (
            f"goes on from checkpoint {checkpoint.number}"
            if checkpoint
            else "starts over, because there is no checkpoint"
        )
        retry = ", and --retry tries simulations again that were given up" if _has_given_up(report) else ""
        detail = f"{detail}; run again, it {then}{retry}"
    return status(state=state, detail=detail, report=report)


def balance_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether the account balances; a run that failed is not called balanced, even if its account is."""
    if not report.get("balanced"):
        return [("account", "NOT BALANCED")]
    return [("account", "balanced")] if report.get("exit_code") in (0, EXIT_SAVED) else []


def account_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The closing account of a run that has ended: where every expected sample has gone."""
    samples = report.get("samples")
    if not isinstance(samples, dict):
        return []
    used = ("trained", "recorded", "skipped", "withdrawn", "untrained")
    names = ("expected", "accepted", "rejected", "never_produced", *used)
    rows = [(in_words(name), f"{_total(samples[name]):,}") for name in names if name in samples]
    if isinstance(windows := samples.get("windows"), dict):
        rows += [(f"windows {in_words(name)}", f"{num:,}") for name, num in windows.items()]
    rows += balance_rows(report)
    return [*rows, *(("", str(text)) for text in report.get("unbalanced", ()))]


def change_rows(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """The newest of what restarts have changed, as rows of a table."""
    return [("" if number else "changed", text) for number, text in enumerate(newest_changes(changes))]


def damages_of(run: RunFolder) -> list[str]:
    """The JSON files of a run that are there and cannot be read."""
    study, *reports = (run.path / name for name in ("study.json", "report.json", "exit.json"))
    damaged = [study] if study.exists() and not run.settings else []
    damaged += [path for path in reports if path.exists() and not _report(path)]
    return [f"{path} is damaged: it is no JSON object as a study writes it" for path in damaged]


def newest_checkpoint(run: RunFolder) -> SavedCheckpoint | None:
    """The newest committed checkpoint, of the newest MAX_MANIFESTS, whose manifest can be read."""
    folder = checkpoints(run)
    names = [entry.name for entry in folder.iterdir() if _CHECKPOINT.fullmatch(entry.name)] if folder.is_dir() else []
    for name in sorted(names, key=int, reverse=True)[:MAX_MANIFESTS]:
        manifest = folder / name / "manifest.json"
        try:
            plain = parse_checksummed_json(read_file(manifest, max_bytes=MAX_TEXT_BYTES, opener=by_own_links))
            saved = convert(plain, _Manifest)
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
    elsewhere = _path_in(run, "checkpoint", "dir")
    return run.path / "checkpoints" if elsewhere is None else named(elsewhere)


def _server_rows(server: StudyStatus) -> list[tuple[str, str]]:
    counts = f"{counted(server.ranks, 'rank')}, {counted(server.incarnation - 1, 'restart')}"
    rows = [
        ("server", f"{server.stage}, {counts}"),
        ("simulations", _counts_of_states(server.simulations)),
        ("time steps", f"{server.received:,} received"),
    ]
    if server.queue:
        reasons = (f"{num:,} {reason and f'({reason})'}".rstrip() for reason, num in server.queue.items())
        rows.append(("queued", ", ".join(reasons)))
    if (training := server.training) is not None:
        losses = [("loss", training.loss), ("validation", training.validation_loss)]
        shown = [f"{name} {value:.4g}" for name, value in losses if value is not None]
        rates = [f"{training.batches_per_s:.1f} batches/s", f"{training.draws_per_s:.1f} draws/s"]
        rows += [
            ("training", ", ".join([counted(training.batches, "batch"), *rates, *shown])),
            ("buffer", f"{training.population:,} of {training.capacity:,} on rank 0"),
        ]
        if training.rounds is not None:
            rows.append(("rounds", "{} of {} ended".format(*training.rounds)))
        rows += change_rows(training.changes)
        if training.fraction is not None:
            seconds = round(training.left_s or 0.0)
            left = f", about {duration(seconds)} left" if seconds else ""
            rows.append(("done", f"{training.fraction:.0%}{left}"))
        if server.age_s > BUSY_S:
            rows.append(("busy", f"the training was last heard of {duration(server.age_s)} ago"))
        if training.is_degraded:
            rows.append(("degraded", "the last checkpoint failed; the one before is good, and another will be tried"))
    return [*rows, *([("waits for", server.awaited)] if server.awaited else [])]


def _report_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    took = duration(report.get("wall_s") or 0.0)
    if (recorded := report.get("samples", {}).get("recorded")) is not None:
        use = "files", f"{counted(recorded, 'sample')} recorded in {took}"
    else:
        use = "training", f"{counted(report.get('batches', 0), 'batch')} in {took}"
    return [
        ("server", f"{counted(report.get('ranks', 0), 'rank')}, {counted(report.get('restarts', 0), 'restart')}"),
        ("simulations", _counts_of_states(report.get("simulations", {}))),
        use,
        *change_rows(convert(report.get("changes", ()), tuple[Change, ...])),
        *balance_rows(report),
    ]


def _counts_of_states(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{num:,} {in_words(state)}" for state, num in counts.items() if num)


def _total(count: Any) -> int:
    return sum(count.values()) if isinstance(count, dict) else int(count)


def in_words(name: str) -> str:
    """The name of a state or a count, as people read it."""
    return name.replace("_", " ")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def _path_in(run: RunFolder, section: str, key: str) -> Path | None:
    """A path in the settings of a run; None if it has none there."""
    settings = run.settings.get(section)
    path = settings.get(key) if isinstance(settings, dict) else None
    return Path(path) if isinstance(path, str) else None


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
        reason = message or str(failure.get("message") or "")[:MAX_CHARACTERS]
        return FAILED, f"exit code {number}: {reason}".partition("\n")[0]
    return KILLED, "it left no report: it was killed, or stopped before training began"


def _report(path: Path) -> dict[str, Any]:
    """A report whose values have the types that a study writes; empty if it is damaged or not there."""
    plain = read_object(path)
    try:
        convert(plain, _Report)
    except ValueError:
        return {}
    return plain


def _facts_of(server: StudyStatus) -> dict[str, Any]:
    return {name: value for name, value in to_builtins(server).items() if name != "message"}
