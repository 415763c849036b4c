"""A run, and the files in its `metrics` folder as they are now."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from sys import intern
from typing import Any

from stream_server.analysis.growing import PIECE_BYTES
from stream_server.config import load
from stream_server.errors import ConfigError
from stream_server.storage.disk import by_own_links, read_text
from stream_server.storage.links import open_by_own_links

AXES = ("batch", "update", "sample", "wall_s")

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The output folder of a study."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved study.json; empty if there is none that can be read."""
        return read_object(self.path / "study.json")


def find_run(path: Path) -> RunFolder:
    """The run in an output folder, or that of a study of which `path` is the folder or the study.json.

    Raises:
        ConfigError: there is none, or the study.json cannot be read.
    """
    path = named(path)
    if not path.exists():
        raise ConfigError(f"there is no {path}: give the output folder of a run, or a study's folder or study.json")
    folder, study = (path, path / "study.json") if path.is_dir() else (path.parent, path)
    if (folder / "metrics").is_dir():
        return RunFolder(folder)
    if not study.exists():
        raise ConfigError(
            f"there is no run in {path}, neither metrics/ nor a study.json: give the output folder of a run, or a "
            "study's folder or study.json"
        )
    output = load(study).study.output_dir
    if not output.exists():
        raise ConfigError(f"{study} was not run yet: there is no {output}")
    return RunFolder(named(output))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run; empty if there is none that can be read."""
    try:
        plain = json.loads(read_text(path, opener=by_own_links))
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def named(path: Path) -> Path:
    """The same place as a path that a user has typed, by no link of somebody else: that one is followed now for good.

    Within a run, such links are not followed.
    """
    try:
        os.close(open_by_own_links(path, os.O_PATH))
    except PermissionError:
        return path.resolve()
    except (OSError, ValueError):
        # There is nothing, and cannot be: a settings file may name anything.
        pass
    return path


def read_records(run: RunFolder) -> list[Line]:
    """All log points and validations, in the order in which they were written; NaN for what was not finite.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    return list(records_of(run))


def records_of(run: RunFolder) -> Iterator[Line]:
    """The same, one after the other.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    has_any = False
    for line in lines_of(run.metrics / "metrics.jsonl"):
        has_any = True
        yield _with_nan(line)
    if not has_any:
        raise ConfigError(f"{run.path} has no metrics yet: its first log point is after training.log_every_batches")


def read_histograms(run: RunFolder, name: str) -> list[Line]:
    """The histograms of one name; `intervals` are lower end, upper end and count.

    Raises:
        ConfigError: a line is damaged.
    """
    return [line for line in lines_of(run.metrics / "histograms.jsonl", _is_histogram) if line["name"] == name]


def records_of_ranks(run: RunFolder) -> Iterator[tuple[int, Line]]:
    """The metrics that each rank logged for itself, one rank after the other.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    has_any = False
    for rank, path in sorted(paths_of_ranks(run).items()):
        for line in lines_of(path):
            has_any = True
            yield rank, _with_nan(line)
    if not has_any:
        raise ConfigError(f"{run.path} has no metrics of single ranks yet")


def paths_of_ranks(run: RunFolder) -> dict[int, Path]:
    """The files in which ranks log for themselves, by rank."""
    ranks = {path.stem.removeprefix("rank-"): path for path in run.metrics.glob("rank-*.jsonl")}
    return {int(rank): path for rank, path in ranks.items() if rank.isdecimal()}


def lines_of(path: Path, is_sound: Callable[[Line], bool] | None = None) -> Iterator[Line]:
    """The objects in a file of JSON lines, without a last line that is still being written; none without a file.

    Raises:
        ConfigError: a line is no JSON object, or not sound; by itself it is if all its values are numbers or null.
    """
    try:
        file = open(path, "rb", opener=by_own_links)  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return
    with file:
        # It may grow for as long as it is read.
        left = os.fstat(file.fileno()).st_size
        for number in count(1):
            text = file.readline(min(left, PIECE_BYTES))
            left -= len(text)
            if not text.endswith(b"\n"):
                if len(text) == PIECE_BYTES:
                    raise ConfigError(f"line {number} of {path} is damaged: it has more than {PIECE_BYTES:,} bytes")
                return
            yield _parsed(text, path, number, is_sound or _is_record)


def _parsed(text: bytes, path: Path, number: int, is_sound: Callable[[Line], bool]) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"line {number} of {path} is damaged: {error}") from error
    if not isinstance(line, dict) or "batch" not in line or not is_sound(line):
        raise ConfigError(f"line {number} of {path} is damaged: it is no record of metrics")
    return line


def names_in(records: Iterable[Line]) -> list[str]:
    """The names of all that was logged, in the order in which they first came."""
    return [name for name in dict.fromkeys(name for record in records for name in record) if name not in AXES]


def is_validation_loss(name: str) -> bool:
    return name.startswith("val/") and name.endswith("/loss")


def needs_log_scale(values: Iterable[float]) -> bool:
    """Whether values are shown on a logarithmic axis: all are positive, and they span two decades at least."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) >= 100 * min(finite)


def _is_record(line: Line) -> bool:
    return all(map(_is_number, line.values()))


def _is_number(value: Any) -> bool:
    # Of a number without bounds a table or a picture cannot be made.
    return value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64)


def _is_histogram(line: Line) -> bool:
    intervals = line.get("intervals")
    return isinstance(line.get("name"), str) and isinstance(intervals, list) and all(map(_is_interval, intervals))


def _is_interval(interval: Any) -> bool:
    return isinstance(interval, list) and len(interval) == 3 and None not in interval and all(map(_is_number, interval))


def parse_records(whole: bytes, path: Path, first: int = 1) -> list[Line]:
    """The log points and validations in whole lines of a file of metrics; NaN for what was not finite.

    Raises:
        ConfigError: a line is damaged.
    """
    return [_with_nan(_parsed(line, path, number, _is_record)) for number, line in enumerate(whole.splitlines(), first)]


def _with_nan(line: Line) -> Line:
    # Names come again in each line: they are kept once.
    return {intern(name): math.nan if value is None else value for name, value in line.items()}
