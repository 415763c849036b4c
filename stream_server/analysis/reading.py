"""The files in the `metrics` folder of a run, as they are now."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_server.analysis.run import Run
from stream_server.errors import ConfigError

AXES = ("batch", "update", "sample", "wall_s")

Line = dict[str, Any]


def read_records(run: Run) -> list[Line]:
    """All log points and validations, in the order in which they were written; NaN for what was not finite.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    lines = read_lines(run.metrics / "metrics.jsonl")
    if not lines:
        raise ConfigError(f"{run.path} has no metrics yet: its first log point is after training.log_every_batches")
    return [_with_nan(line) for line in lines]


def read_histograms(run: Run, name: str) -> list[Line]:
    """The histograms of one name; `intervals` are lower end, upper end and count.

    Raises:
        ConfigError: a line is damaged.
    """
    lines = read_lines(run.metrics / "histograms.jsonl", _is_histogram)
    return [line for line in lines if line["name"] == name]


def read_ranks(run: Run) -> dict[int, list[Line]]:
    """What each rank logged for itself.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    paths = {int(path.stem.removeprefix("rank-")): path for path in run.metrics.glob("rank-*.jsonl")}
    records = {rank: [_with_nan(line) for line in read_lines(paths[rank])] for rank in sorted(paths)}
    if not any(records.values()):
        raise ConfigError(f"{run.path} has no metrics of single ranks yet")
    return records


def read_lines(path: Path, is_sound: Callable[[Line], bool] | None = None) -> list[Line]:
    """The objects in a file of JSON lines, without a last line that is still being written; none without a file.

    Raises:
        ConfigError: a line is no JSON object, or not sound; by itself it is if all its values are numbers or null.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number} of {path} is damaged: {error}") from error
        if not isinstance(line, dict) or "batch" not in line or not (is_sound or _is_record)(line):
            raise ConfigError(f"line {number} of {path} is damaged: it is no record of metrics")
        lines.append(line)
    return lines


def names_in(records: list[Line]) -> list[str]:
    """The names of all that was logged, in the order in which they first came."""
    return [name for name in dict.fromkeys(name for record in records for name in record) if name not in AXES]


def _is_record(line: Line) -> bool:
    return all(value is None or isinstance(value, int | float) for value in line.values())


def _is_histogram(line: Line) -> bool:
    intervals = line.get("intervals")
    return isinstance(line.get("name"), str) and isinstance(intervals, list) and all(map(_is_interval, intervals))


def _is_interval(interval: Any) -> bool:
    return isinstance(interval, list) and len(interval) == 3 and all(isinstance(it, int | float) for it in interval)


def _with_nan(line: Line) -> Line:
    return {name: math.nan if value is None else value for name, value in line.items()}
