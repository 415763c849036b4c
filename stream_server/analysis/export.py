"""The metrics of runs as one table, in a file that other programs read."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow  # type: ignore[import-untyped]  # noqa: F401

from stream_server.analysis.reading import AXES, Line, read_ranks, read_records
from stream_server.analysis.run import Run
from stream_server.errors import ConfigError

FORMATS = (".parquet", ".csv")

Place = dict[str, Any]


def export(runs: Sequence[Run], to: Path, *, wide: bool = False, per_rank: bool = False) -> int:
    """Write the table of these runs; gives the number of its rows. See `table` for what is in it.

    Raises:
        ConfigError: a run has no metrics yet, or the file cannot be written.
    """
    if to.suffix not in FORMATS:
        raise ConfigError(f"--to must end in {' or '.join(FORMATS)}, but is {to}")
    written = table(runs, wide=wide, per_rank=per_rank)
    try:
        if to.suffix == ".csv":
            written.to_csv(to, index=False)
        else:
            written.to_parquet(to, index=False)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error}") from error
    return len(written)


def table(runs: Sequence[Run], *, wide: bool = False, per_rank: bool = False) -> pd.DataFrame:
    """One row per value, with the columns run, batch, update, sample, wall_s, name and value.

    If `wide`, it is one row per batch and one column per name instead. If `per_rank`, it has what each rank logged for
    itself instead of the means over the ranks, and a column rank after run.

    Raises:
        ConfigError: a run has no metrics yet, or a file is damaged.
    """
    places = ["run", "rank"] if per_rank else ["run"]
    sources = [source for run in runs for source in _sources(run, per_rank=per_rank)]
    if wide:
        rows = pd.DataFrame.from_records([row for place, records in sources for row in _per_batch(place, records)])
        names = [name for name in rows.columns if name not in (*places, *AXES)]
        return rows.reindex(columns=[*places, *AXES, *names])
    columns = [*places, *AXES, "name", "value"]
    return pd.DataFrame.from_records(
        [row for place, records in sources for row in _per_value(place, records)], columns=columns
    )


def _sources(run: Run, *, per_rank: bool) -> Iterator[tuple[Place, list[Line]]]:
    if per_rank:
        for rank, records in read_ranks(run).items():
            yield {"run": run.name, "rank": rank}, records
    else:
        yield {"run": run.name}, read_records(run)


def _per_value(place: Place, records: Iterable[Line]) -> Iterator[tuple[Any, ...]]:
    for record in records:
        where = (*place.values(), *(record.get(axis) for axis in AXES))
        yield from ((*where, name, value) for name, value in record.items() if name not in AXES)


def _per_batch(place: Place, records: Iterable[Line]) -> Iterable[Line]:
    """A validation is in the row of the log point of its batch."""
    rows: dict[int, Line] = {}
    for record in records:
        row = rows.setdefault(record["batch"], {**place})
        row.update({name: value for name, value in record.items() if name not in AXES or name not in row})
    return rows.values()
