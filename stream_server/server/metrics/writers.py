"""The writers of metrics: how they are opened, and the JSON lines."""

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stream_server.built_in import WRITERS, load_named
from stream_server.errors import ConfigError
from stream_server.live_parts import LiveObject
from stream_server.server.metrics.log_record import AXES, LoggedRun, Record, Writer
from stream_server.storage.disk import (
    exists,
    make_folder,
    names_in,
    place_of,
    read_file,
    remove_leftovers,
    replace_file,
)
from stream_server.user_code import arguments_for

WantedWriters = Sequence[tuple[str, Mapping[str, Any]]]
WriterMaker = tuple[str, Callable[[LoggedRun], Writer]]

_log = logging.getLogger(__name__)


DEFAULT_WRITERS: WantedWriters = (("tensorboard", {}),)


def open_writers(run: LoggedRun, wanted: WantedWriters = DEFAULT_WRITERS, study_dir: Path = Path()) -> list[Writer]:
    """Open the writers of what all ranks have logged, which continue what earlier starts have written. Rank 0 only.

    The JSON lines, which `stream-study` reads, are always among them. What ranks that are no more have logged after
    batch `run.after` is dropped, too.

    Args:
        run: what the writers belong to.
        wanted: names of built-in writers, or FILE.py:Class, with their arguments.
        study_dir: folder of study.json, at which a FILE starts.

    Raises:
        ConfigError: there is no such writer, or it does not take these arguments. A writer that cannot be opened for
            another reason is left out, with a warning.
        UserCodeError: a user's file raised while it was imported.
    """
    makers = writer_makers(wanted, study_dir)
    make_folder(run.folder)
    for name in names_in(run.folder):
        of_rank = re.fullmatch(r"rank-(\d+)\.jsonl", name)
        if of_rank and int(of_rank[1]) >= run.num_ranks:
            _cut(run.folder / name, run.after)
    return [
        JsonLinesWriter(run.folder / "metrics.jsonl", run.after, validated=run.validated),
        HistogramsWriter(run.folder / "histograms.jsonl", run.after),
        *_open(makers, run),
    ]


def open_own_writer(run: LoggedRun, rank: int) -> Writer:
    """Open the JSON lines of what one rank has logged for itself. Every rank."""
    make_folder(run.folder)
    return JsonLinesWriter(run.folder / f"rank-{rank}.jsonl", run.after)


def writer_makers(wanted: WantedWriters, study_dir: Path) -> list[WriterMaker]:
    """The name of each writer and what opens it for a run.

    Raises:
        ConfigError: there is no such writer, or it does not take these arguments.
        UserCodeError: a user's file raised while it was imported.
    """
    makers: list[WriterMaker] = []
    for name, args in wanted:
        factory = load_named(name, WRITERS, study_dir, kind="metrics.writers")
        if isinstance(factory, LiveObject):
            raise ConfigError(f"metrics.writers: {name} must be a class, but is {factory!r}")
        lacks = [] if name in WRITERS else [call for call in ("write", "flush", "close") if not hasattr(factory, call)]
        if lacks:
            raise ConfigError(f"metrics.writers: {name} must define {' and '.join(lacks)}")
        # The run itself is known only where the writer is opened.
        given = arguments_for(factory, args, {"run": None}, kind=f"the arguments of {name} in metrics.writers")
        makers.append((name, partial(_make, factory, given)))
    return makers


def _make(factory: Callable[..., Writer], given: Mapping[str, Any], run: LoggedRun) -> Writer:
    return factory(**{**given, "run": run} if "run" in given else given)


def _open(makers: Sequence[WriterMaker], run: LoggedRun) -> list[Writer]:
    writers = []
    for name, make in makers:
        # A server of metrics that is down must not keep a study from going on after a restart.
        try:
            writers.append(make(run))
        except (Exception, SystemExit) as error:
            _log.warning("%s cannot be opened, and writes no metrics: %s", name, error, exc_info=error)
    return writers


class JsonLinesWriter:
    """One JSON object per log point, `null` for a number that is not finite."""

    def __init__(self, path: Path, after: int = 0, *, validated: Collection[str] | None = None) -> None:
        _cut(path, after, validated=validated)
        place = Path(place_of(path))
        self._file = place.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        for line in self._lines(record):
            self._file.write(json.dumps({**record.axes, **line}) + "\n")
        self._file.flush()

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def close(self) -> None:
        self._file.close()

    def _lines(self, record: Record) -> Iterator[dict[str, Any]]:
        if record.values:
            yield {name: value if math.isfinite(value) else None for name, value in record.values.items()}


class HistogramsWriter(JsonLinesWriter):
    """One JSON object per histogram, with lower end, upper end and count of each interval that has values in it."""

    def _lines(self, record: Record) -> Iterator[dict[str, Any]]:
        for name, histogram in record.histograms.items():
            intervals = [(_short(lower), _short(upper), num) for lower, upper, num in histogram.intervals()]
            yield {"name": name, "intervals": intervals}


def _short(value: float) -> float:
    """Number as text, with as many digits as a picture needs."""
    return float(f"{value:.6g}")


def _cut(path: Path, after: int, *, validated: Collection[str] | None = None) -> None:
    """Remove the lines after batch `after`, and damaged ones, from a file, if there is one."""
    remove_leftovers(path)
    if not exists(path):
        return
    *lines, _ = read_file(path, max_bytes=None).split(b"\n")
    kept = [line + b"\n" for line in lines if _line_stays(line, after, validated=validated)]
    replace_file(path, b"".join(kept))


def _line_stays(line: bytes, after: int, *, validated: Collection[str] | None) -> bool:
    try:
        record = json.loads(line)
        return _stays(record, record["batch"], after, validated=validated)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return False


def _stays(record: dict[str, Any], batch: int, after: int, *, validated: Collection[str] | None) -> bool:
    """Whether the record of a batch until `after` is not of a validation that is done again."""
    if batch != after or validated is None:
        return batch <= after
    names = [name for name, value in record.items() if name not in AXES and value != ""]
    return any(not name.startswith("val/") or name in validated for name in names)
