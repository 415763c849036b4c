"""The plain files that metrics go to, JSON lines and CSV, and the opening of all writers."""

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

from stream_server.disk import remove_leftovers, replace_file
from stream_server.server.training.log_record import AXES, Record, Writer


def open_writers(folder: Path, after: int = 0, num_ranks: int = 1, *, is_validated: bool = True) -> list[Writer]:
    """Writers of all formats into the `metrics` folder of a study, which continue the files of earlier epochs.

    What was logged after batch `after` goes, also by ranks that are no more: those batches are trained again. Unless
    `is_validated`, a validation after that batch goes too: it is done again. For rank 0 alone; TensorBoard's package is
    imported here, so that the other ranks do without.
    """
    from stream_server.server.training.tensorboard_writer import TensorBoardWriter

    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("rank-*.jsonl"):
        if int(path.stem.removeprefix("rank-")) >= num_ranks:
            _cut(path, after)
    return [
        JsonLinesWriter(folder / "metrics.jsonl", after, is_validated=is_validated),
        HistogramsWriter(folder / "histograms.jsonl", after),
        CsvWriter(folder / "metrics.csv", after, is_validated=is_validated),
        TensorBoardWriter(folder / "tensorboard", after),
    ]


def open_own_writer(folder: Path, rank: int, after: int = 0) -> Writer:
    """The writer of what one rank alone has logged; every rank has one."""
    folder.mkdir(parents=True, exist_ok=True)
    return JsonLinesWriter(folder / f"rank-{rank}.jsonl", after)


class JsonLinesWriter:
    """One JSON object per log point, `null` for a number that is not finite."""

    def __init__(self, path: Path, after: int = 0, *, is_validated: bool = True) -> None:
        _cut(path, after, is_validated=is_validated)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        if not record.values:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in record.values.items()}
        self._file.write(json.dumps({**record.axes, **finite}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class HistogramsWriter:
    """One JSON object per histogram, with lower end, upper end and count of each interval that has values in it."""

    def __init__(self, path: Path, after: int = 0) -> None:
        _cut(path, after)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        for name, histogram in record.histograms.items():
            intervals = [(_short(lower), _short(upper), num) for lower, upper, num in histogram.intervals()]
            self._file.write(json.dumps({**record.axes, "name": name, "intervals": intervals}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """One row per log point and one column per name; a name that comes later adds its column to the rows before."""

    def __init__(self, path: Path, after: int = 0, *, is_validated: bool = True) -> None:
        remove_leftovers(path)
        self._path = path
        self._columns = list(AXES)
        rows: list[dict[str, Any]] = []
        if path.exists():
            # A crash may have torn the last line, also so that it still looks like one; one of the system any line.
            whole, _, _ = path.read_text(encoding="utf-8", errors="replace").replace("\0", "").rpartition("\n")
            reader = csv.DictReader(whole.splitlines())
            if "batch" in (reader.fieldnames or ()):
                self._columns = list(reader.fieldnames or ())
                rows = [
                    row
                    for row in reader
                    if _is_whole(row) and _stays(row, int(row["batch"]), after, is_validated=is_validated)
                ]
        self._rewrite(rows)
        self._file = path.open("a", newline="", encoding="utf-8")

    def write(self, record: Record) -> None:
        if not record.values or not self._is_ours:
            return
        row = {**record.axes, **record.values}
        new = [name for name in row if name not in self._columns]
        if new:
            self._add_columns(new)
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def _is_ours(self) -> bool:
        """A newer start of the server, if there is one, has put its own file in the place of this one."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _add_columns(self, names: list[str]) -> None:
        self._file.close()
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self._columns += names
        self._rewrite(rows)
        self._file = self._path.open("a", newline="", encoding="utf-8")

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self._path, table.getvalue().encode())


def _short(value: float) -> float:
    """As many digits as a picture needs."""
    return float(f"{value:.6g}")


def _cut(path: Path, after: int, *, is_validated: bool = True) -> None:
    """Take the lines after batch `after`, and those that a crash has damaged, out of a file, if there is one."""
    remove_leftovers(path)
    if not path.exists():
        return
    *lines, _ = path.read_bytes().split(b"\n")
    kept = [line + b"\n" for line in lines if _line_stays(line, after, is_validated=is_validated)]
    replace_file(path, b"".join(kept))


def _line_stays(line: bytes, after: int, *, is_validated: bool) -> bool:
    try:
        record = json.loads(line)
        return _stays(record, record["batch"], after, is_validated=is_validated)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return False


def _stays(record: dict[str, Any], batch: int, after: int, *, is_validated: bool) -> bool:
    """Whether the record of a batch until `after` is not of a validation that is done again."""
    if batch != after or is_validated:
        return batch <= after
    return not all(name.startswith("val/") for name, value in record.items() if name not in AXES and value != "")


def _is_whole(row: dict[str, Any]) -> bool:
    batch = row["batch"]
    return None not in row and None not in row.values() and batch.isascii() and batch.isdigit() and len(batch) < 20
