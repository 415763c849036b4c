"""A CSV file of parameters: a header of names, then one row per simulation id."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from stream_server.config.parameters import Parameters
from stream_server.config.values import NAME

ID_COLUMN = "simulation"


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignFile:
    """Row i holds the parameters of simulation i: the validation simulations first, as in `parameters.csv`."""

    names: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, path: Path) -> "DesignFile":
        """Read a CSV file; a first column `simulation`, as Stream Server writes it, must count from 0.

        Raises:
            ValueError: the file is missing or malformed; says which line.
        """
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = [line for line in csv.reader(file, skipinitialspace=True) if line]
        except FileNotFoundError as error:
            raise ValueError(f"there is no file {path}") from error
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        if not lines:
            raise ValueError(f"{path} is empty")
        columns = tuple(name.strip() for name in lines[0])
        rows = [_row(line, columns, number) for number, line in enumerate(lines[1:], start=2)]
        if columns[0] != ID_COLUMN:
            return cls(names=_checked(columns), rows=tuple(rows))
        if [row[0] for row in rows] != list(range(len(rows))):
            raise ValueError(f"the column {ID_COLUMN} of {path} must count 0, 1, 2, …")
        return cls(names=_checked(columns[1:]), rows=tuple(row[1:] for row in rows))


def parameter_names(parameters: Parameters) -> tuple[str, ...] | None:
    """The names of the parameters in order; None when the file that should tell cannot be read."""
    if parameters.bounds is not None:
        return tuple(parameters.bounds)
    if parameters.file is None:
        return None
    try:
        return DesignFile.read(parameters.file).names
    except ValueError:
        return None


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f'line 1: "{name}" is no name made of letters, digits and underscores')
        if names.count(name) > 1:
            raise ValueError(f'line 1: the column "{name}" is there twice')
    return names


def _row(line: list[str], columns: tuple[str, ...], number: int) -> tuple[float, ...]:
    if len(line) != len(columns):
        raise ValueError(f"line {number} has {len(line)} values for {len(columns)} columns")
    try:
        row = tuple(float(value) for value in line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not all(math.isfinite(value) for value in row):
        raise ValueError(f"line {number} holds a value that is not finite")
    return row
