"""A run, and the files in its `metrics` folder as they are now."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.config import load
from stream_server.errors import ConfigError
from stream_server.storage.disk import read_file

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


def find_run(path: Path) -> RunFolder:
    """The run in an output folder, or that of a study of which `path` is the folder or the study.json.

    Raises:
        ConfigError: there is none, or the study.json cannot be read.
    """
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
    return RunFolder(output)


def read_records(run: RunFolder) -> list[Line]:
    """All log points and validations, in the order in which they were written; NaN for what was not finite.

    Raises:
        ConfigError: nothing was logged yet, or a line is damaged.
    """
    lines = read_lines(run.metrics / "metrics.jsonl")
    if not lines:
        raise ConfigError(f"{run.path} has no metrics yet: its first log point is after training.log_every_batches")
    return [_with_nan(line) for line in lines]


def read_histograms(run: RunFolder, name: str) -> list[Line]:
    """The histograms of one name; `intervals` are lower end, upper end and count.

    Raises:
        ConfigError: a line is damaged.
    """
    lines = read_lines(run.metrics / "histograms.jsonl", _is_histogram)
    return [line for line in lines if line["name"] == name]


def read_ranks(run: RunFolder) -> dict[int, list[Line]]:
    """Read the metrics that each rank logged for itself.

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
    whole, _, _ = read_file(path).rpartition(b"\n")
    return parse_lines(whole, path, is_sound=is_sound)


def parse_lines(whole: bytes, path: Path, first: int = 1, is_sound: Callable[[Line], bool] | None = None) -> list[Line]:
    """The objects in whole lines of such a file, the `first` of which has this number.

    Raises:
        ConfigError: a line is damaged.
    """
    lines = []
    for number, text in enumerate(whole.splitlines(), first):
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


def is_validation_loss(name: str) -> bool:
    """Whether what was logged under this name is the loss of a validation set."""
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
    return [_with_nan(line) for line in parse_lines(whole, path, first)]


def _with_nan(line: Line) -> Line:
    return {name: math.nan if value is None else value for name, value in line.items()}
