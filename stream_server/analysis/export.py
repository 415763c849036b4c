"""The metrics of runs as one table, in a file that other programs read."""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.analysis.reading import AXES, Line, RunFolder, read_ranks, read_records
from stream_server.errors import ConfigError
from stream_server.storage.disk import for_result
from stream_server.storage.ownership import refuse_links_of_others

FORMATS = (".parquet", ".csv")

Place = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Columns of equal length by name. In each, all values are text, all are int, or all are float; NaN is missing."""

    columns: dict[str, list[Any]]

    @classmethod
    def of(cls, names: Iterable[str], rows: Sequence[Line]) -> "Table":
        """The table of these rows, which may lack values."""
        return cls(columns={name: _of_one_type([row.get(name) for row in rows]) for name in names})

    @property
    def num_rows(self) -> int:
        return len(self.columns["run"])


def export(runs: Sequence[RunFolder], to: Path, *, wide: bool = False, per_rank: bool = False) -> int:
    """Write the table of these runs; gives the number of its rows. See `table` for what is in it.

    Raises:
        ConfigError: a run has no metrics yet, or the file cannot be written.
        ModuleNotFoundError: the file is to be Parquet, and pyarrow is not installed.
    """
    if to.suffix not in FORMATS:
        raise ConfigError(f"--to must end in {' or '.join(FORMATS)}, but is {to}")
    write = _write_csv if to.suffix == ".csv" else _write_parquet
    written = table(runs, wide=wide, per_rank=per_rank)
    try:
        refuse_links_of_others(to)
        write(written, to)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error}") from error
    return written.num_rows


def table(runs: Sequence[RunFolder], *, wide: bool = False, per_rank: bool = False) -> Table:
    """One row per value, with the columns run, batch, update, sample, wall_s, name and value.

    If `wide`, it is one row per batch and one column per name instead. If `per_rank`, it has what each rank logged for
    itself instead of the means over the ranks, and a column rank after run.

    Raises:
        ConfigError: a run has no metrics yet, or a file is damaged.
    """
    sources = [source for run in runs for source in _sources(run, per_rank=per_rank)]
    known = ("run", "rank", *AXES) if per_rank else ("run", *AXES)
    if wide:
        rows = [row for place, records in sources for row in _per_batch(place, records)]
        return Table.of(dict.fromkeys((*known, *(name for row in rows for name in row))), rows)
    rows = [row for place, records in sources for row in _per_value(place, records)]
    return Table.of((*known, "name", "value"), rows)


def _sources(run: RunFolder, *, per_rank: bool) -> Iterator[tuple[Place, list[Line]]]:
    if per_rank:
        for rank, records in read_ranks(run).items():
            yield {"run": run.name, "rank": rank}, records
    else:
        yield {"run": run.name}, read_records(run)


def _per_value(place: Place, records: Iterable[Line]) -> Iterator[Line]:
    for record in records:
        where = place | {axis: record.get(axis) for axis in AXES}
        yield from ({**where, "name": name, "value": value} for name, value in record.items() if name not in AXES)


def _per_batch(place: Place, records: Iterable[Line]) -> Iterable[Line]:
    """A validation is in the row of the log point of its batch."""
    rows: dict[int, Line] = {}
    for record in records:
        row = rows.setdefault(record["batch"], {**place})
        row.update({name: value for name, value in record.items() if name not in AXES or name not in row})
    return rows.values()


def _of_one_type(values: list[Any]) -> list[Any]:
    """Text and whole numbers as they are; a column in which something is missing or no whole number is of floats."""
    if all(isinstance(value, str) for value in values) or all(isinstance(value, int) for value in values):
        return values
    return [math.nan if value is None else float(value) for value in values]


def _write_csv(table: Table, to: Path) -> None:
    with open(to, "w", newline="", encoding="utf-8", opener=for_result) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        for row in zip(*table.columns.values(), strict=True):
            # NaN alone differs from itself.
            writer.writerow("" if value != value else value for value in row)


def _write_parquet(table: Table, to: Path) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    columns = {
        name: pyarrow.array(values, kinds[type(values[0])] if values else None, from_pandas=True)
        for name, values in table.columns.items()
    }
    with open(to, "wb", opener=for_result) as file:
        parquet.write_table(pyarrow.table(columns), file)
