"""Parameters of simulations: bounds and how they are sampled, or a CSV file of the values."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.built_in import SAMPLERS
from stream_server.config.problems import counted, shown, wrong
from stream_server.config.values import NAME, NameOrClass, Section
from stream_server.storage.disk import read_file

ID_COLUMN = "simulation"


class Bounds(Section):
    """The range of one parameter, sampled evenly in its value or in its logarithm."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        form = 'Write [low, high] or [low, high, "log"]'
        if isinstance(value, Bounds):
            return value
        if not isinstance(value, list | tuple) or len(value) not in (2, 3):
            raise wrong(f"{shown(value)} is not a range", form)
        low, high, *rest = value
        for limit in (low, high):
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
                raise wrong(f"{shown(limit)} in {shown(value)} is not a finite number", form)
        if rest and rest != ["log"]:
            raise wrong(f"{shown(rest[0])} in {shown(value)} is not a scale", form)
        if low >= high:
            instead = f"Write [{high}, {low}]" if low > high else "Write two different limits"
            raise wrong(f"low ({low}) must be less than high ({high})", instead)
        if rest and low <= 0:
            raise wrong(
                f"low ({low}) must be positive on a logarithmic scale", 'Write a positive low or leave "log" out'
            )
        return {"low": float(low), "high": float(high), "log": bool(rest)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        number = {"type": "number"}
        return {"type": "array", "prefixItems": [number, number, {"const": "log"}], "items": False, "minItems": 2}

    @model_serializer
    def _as_list(self) -> list[float | str]:
        return [self.low, self.high, "log"] if self.log else [self.low, self.high]


Sampler = Annotated[str, NameOrClass("sampler", tuple(SAMPLERS))]


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
            text = read_file(path).decode("utf-8-sig")
            lines = [line for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) if line]
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


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f'line 1: "{name}" is not a name made of letters, digits and underscores')
        if names.count(name) > 1:
            raise ValueError(f'line 1: the column "{name}" is there twice')
    return names


def _row(line: list[str], columns: tuple[str, ...], number: int) -> tuple[float, ...]:
    if len(line) != len(columns):
        there, expected = counted(len(line), "value"), counted(len(columns), "column")
        raise ValueError(f"line {number} has {there} for {expected}")
    try:
        row = tuple(float(value) for value in line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not all(math.isfinite(value) for value in row):
        raise ValueError(f"line {number} holds a value that is not finite")
    return row
