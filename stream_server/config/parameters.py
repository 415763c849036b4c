"""Parameters of simulations: bounds and how they are sampled, or a CSV file of the values."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.built_in import SAMPLERS
from stream_server.config.problems import counted, shown, wrong
from stream_server.config.values import NAME, Count, NameOrClass, Positive, Section
from stream_server.storage.disk import read_file

ID_COLUMN = "simulation"
ORIGIN_COLUMNS = ("proposed by", "proposed at", "score")
"""The last columns of `parameters.csv` where a class suggests the parameters; no parameter can have such a name."""


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


SamplerName = Annotated[str, NameOrClass("sampler", tuple(SAMPLERS))]


class SamplerSettings(Section):
    """How points are chosen within the bounds: a built-in sampler, or a class that suggests them while the study runs.

    In study.json a sampler without further keys is written as its name alone.
    """

    class_: SamplerName = Field(alias="class", description="A built-in sampler, or FILE.py:Class.")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the class by name.")
    lookahead: Count | None = Field(
        default=None,
        description="Suggestions that are ready before a class that learns is asked for more; null: as many as run.",
    )
    timeout_s: Positive = Field(default=60.0, description="Longest time for which the class may take to answer.")
    fallback: Literal["uniform", "halton", "sobol"] = Field(
        default="sobol", description="Where points come from that the class does not suggest in time."
    )

    @property
    def is_built_in(self) -> bool:
        """Its points follow from the seed and the number of the simulation alone."""
        return self.class_ in SAMPLERS

    def __str__(self) -> str:
        return self.class_

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _as_name(self, serialize: Any) -> Any:
        is_name = self == SamplerSettings.model_validate(self.class_)
        return self.class_ if is_name else serialize(self)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        settings = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [settings["properties"]["class"], settings]}


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
        if columns[-len(ORIGIN_COLUMNS) :] == ORIGIN_COLUMNS:
            columns = columns[: -len(ORIGIN_COLUMNS)]
            lines = [line[: -len(ORIGIN_COLUMNS)] for line in lines]
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
