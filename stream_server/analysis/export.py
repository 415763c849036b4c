"""The metrics of runs as one table, in a file that other programs read."""

import csv
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stream_server.analysis.reading import AXES, Line, RunFolder, records_of, records_of_ranks
from stream_server.errors import ConfigError
from stream_server.storage.disk import open_output

FORMATS = (".parquet", ".csv")
MAX_COLUMNS = 2000

RowPlace = dict[str, Any]


# Columns of equal length by name. In each, all values are text, all are int, or all are float; NaN is missing.
Table = dict[str, list[Any]]


def export(runs: Sequence[RunFolder], to: Path, *, wide: bool = False, per_rank: bool = False) -> int:
    """Write the table of these runs; returns the number of its rows. See `table` for what is in it.

    Raises:
        ConfigError: a run has no metrics yet, or the file cannot be written.
        ModuleNotFoundError: the file is to be Parquet, and pyarrow is not installed.
    """
    if to.suffix not in FORMATS:
        raise ConfigError(f"--to must end in {' or '.join(FORMATS)}, but is {to}")
    write = _write_csv if to.suffix == ".csv" else _write_parquet
    written = table(runs, wide=wide, per_rank=per_rank)
    try:
        write(written, to)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error}") from error
    return len(written["run"])


def table(runs: Sequence[RunFolder], *, wide: bool = False, per_rank: bool = False) -> Table:
    """One row per value, with the columns run, batch, update, sample, wall_s, name and value.

    If `wide`, it is one row per batch and one column per name instead. If `per_rank`, it has what each rank logged for
    itself instead of the means over the ranks, and a column rank after run.

    Raises:
        ConfigError: a run has no metrics yet, or a file is damaged.
    """
    sources = [_points(run, per_rank=per_rank) for run in runs]
    known = ("run", "rank", *AXES) if per_rank else ("run", *AXES)
    if wide:
        rows = [row for points in sources for row in _per_batch(points)]
        names = dict.fromkeys((*known, *(name for row in rows for name in row)))
        if len(names) > MAX_COLUMNS:
            raise ConfigError(f"the table would have {len(names):,} columns, and may have {MAX_COLUMNS:,}: omit --wide")
        return _table_of(names, rows)
    return _table_of((*known, "name", "value"), (row for points in sources for row in _per_value(points)))


def _points(run: RunFolder, *, per_rank: bool) -> Iterator[tuple[RowPlace, Line]]:
    if per_rank:
        yield from (({"run": run.name, "rank": rank}, record) for rank, record in records_of_ranks(run))
    else:
        yield from (({"run": run.name}, record) for record in records_of(run))


def _per_value(points: Iterable[tuple[RowPlace, Line]]) -> Iterator[Line]:
    for place, record in points:
        where = place | {axis: record.get(axis) for axis in AXES}
        yield from ({**where, "name": name, "value": value} for name, value in record.items() if name not in AXES)


def _per_batch(points: Iterable[tuple[RowPlace, Line]]) -> Collection[Line]:
    """A validation is in the row of the log point of its batch."""
    rows: dict[object, Line] = {}
    for place, record in points:
        row = rows.setdefault((*place.values(), record["batch"]), {**place})
        row.update({name: value for name, value in record.items() if name not in AXES or name not in row})
    return rows.values()


def _table_of(names: Iterable[str], rows: Iterable[Line]) -> Table:
    """The table of these rows, which may lack values. Of the rows themselves nothing is kept."""
    columns: Table = {name: [] for name in names}
    for row in rows:
        for name, column in columns.items():
            column.append(row.get(name))
    return {name: _of_one_type(column) for name, column in columns.items()}


def _of_one_type(values: list[Any]) -> list[Any]:
    """Text and whole numbers as they are; a column in which something is missing or no whole number is of floats."""
    if all(isinstance(value, str) for value in values) or all(isinstance(value, int) for value in values):
        return values
    return [math.nan if value is None else float(value) for value in values]


def _write_csv(table: Table, to: Path) -> None:
    with open(to, "w", newline="", encoding="utf-8", opener=open_output) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            # NaN alone differs from itself.
            writer.writerow("" if value != value else value for value in row)


def _write_parquet(table: Table, to: Path) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    columns = {
        name: pyarrow.array(values, kinds[type(values[0])] if values else None, from_pandas=True)
        for name, values in table.items()
    }
    with open(to, "wb", opener=open_output) as file:
        parquet.write_table(pyarrow.table(columns), file)
