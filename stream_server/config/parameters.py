"""Parameters of simulations: bounds and how they are sampled, or a CSV file of the values."""

import csv
import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.built_in import GENERATORS, SAMPLERS
from stream_server.config.problems import shown, wrong
from stream_server.config.values import NAME, Count, NamedClass, NameOrClass, Positive, Section
from stream_server.storage.disk import read_file
from stream_server.wording import counted

ID_COLUMN = "simulation"
MAX_SIZE = 10_000
LARGEST = 2**53
ORIGIN_COLUMNS = ("proposed by", "proposed at", "score")
"""The last columns of `parameters.csv` where a class suggests the parameters; no parameter can have such a name."""


SCALES = ("log", "integer")
Scale = Literal["log", "integer"]
# `Range` and `Vector` are for the JSON schema alone: `Bounds` says in words what is wrong with one.
Range = (
    tuple[float, float]
    | tuple[float, float, Scale]
    | tuple[float, float, Scale, Scale]
    | Annotated[tuple[str, ...], Field(min_length=2, json_schema_extra={"uniqueItems": True})]
)


class Vector(Section):
    """A parameter of several numbers, as study.json has it."""

    range: Range = Field(description="The range of each number.")
    size: Annotated[int, Field(ge=1, le=MAX_SIZE)] = Field(description="How many numbers the vector has.")


class Bounds(Section):
    """The range of a parameter: of one number, or of each number of a vector.

    A number is sampled evenly in its value or in its logarithm. One that is an `integer` is a whole number, and of
    `categories` it is the index: `low` and `high` are then the first and the last one. A vector has a `size`.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False
    categories: tuple[str, ...] = ()
    size: int | None = None

    @property
    def scalar(self) -> "Bounds":
        """The range of each number of it."""
        return self if self.size is None else self.model_copy(update={"size": None})

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        if isinstance(value, Bounds):
            return value
        if not isinstance(value, Mapping):
            return _range(value)
        form = 'Write {"range": [low, high], "size": number}'
        if set(value) != {"range", "size"}:
            raise wrong(f"{shown(value)} is no vector", form)
        if type(value["size"]) is not int or not 1 <= value["size"] <= MAX_SIZE:
            raise wrong(f"the size {shown(value['size'])} is not a number from 1 to {MAX_SIZE}", form)
        return {**_range(value["range"]), "size": value["size"]}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(TypeAdapter(Range | Vector).core_schema)

    @model_serializer
    def _as_json(self) -> Any:
        scales = [scale for scale in SCALES if getattr(self, scale)]
        limits: list[float | str] = [*self.categories] or [self.low, self.high, *scales]
        return limits if self.size is None else {"range": limits, "size": self.size}


def _range(value: Any) -> dict[str, Any]:
    form = 'Write [low, high], [low, high, "log"], [low, high, "integer"] or a list of names'
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise wrong(f"{shown(value)} is not a range", form)
    if all(isinstance(it, str) for it in value):
        if twice := [it for it in value if value.count(it) > 1]:
            raise wrong(f"{shown(twice[0])} is twice in {shown(value)}", "Write each category once")
        return {"low": 0.0, "high": len(value) - 1.0, "integer": True, "categories": tuple(value)}
    low, high, *scales = value
    for limit in (low, high):
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
            raise wrong(f"{shown(limit)} in {shown(value)} is not a finite number", form)
    for scale in scales:
        if scale not in SCALES or scales.count(scale) > 1:
            raise wrong(f"{shown(scale)} in {shown(value)} is not a scale", form)
    if low >= high:
        instead = f"Write [{high}, {low}]" if low > high else "Write two different limits"
        raise wrong(f"low ({low}) must be less than high ({high})", instead)
    if "log" in scales and low <= 0:
        raise wrong(f"low ({low}) must be positive on a logarithmic scale", 'Write a positive low or leave "log" out')
    if "integer" in scales and not -low < LARGEST > high:
        # Above, a float does not hold each of them.
        raise wrong(f"{shown(value)} goes beyond the whole numbers that there are", f"Write limits below {LARGEST:,}")
    if "integer" in scales and not (float(low).is_integer() and float(high).is_integer()):
        raise wrong(
            f"{shown(value)} has limits that are no whole numbers", f"Write [{math.ceil(low)}, {math.floor(high)}, …]"
        )
    return {"low": float(low), "high": float(high), **dict.fromkeys(scales, True)}


def scalars_of(bounds: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """The range of each single number by its name: those of a vector `modes` are `modes_0`, `modes_1`, …"""
    scalars: dict[str, Bounds] = {}
    for name, limits in bounds.items():
        names = [name] if limits.size is None else [f"{name}_{i}" for i in range(limits.size)]
        scalars |= dict.fromkeys(names, limits.scalar)
    return scalars


SamplerName = Annotated[str, NameOrClass("sampler", (*SAMPLERS, *GENERATORS), "samplers")]


class SamplerSettings(NamedClass):
    """The choice of points within the bounds: a built-in sampler, or a class that suggests them while the study runs.

    In study.json a sampler without further keys is written as its name alone.
    """

    class_: SamplerName = Field(alias="class", description='A built-in sampler, or `"FILE.py:Class"`.')
    lookahead: Count | None = Field(
        default=None,
        description="For a class with `ingest`: how many simulations, besides those that have begun, have their "
        "parameters already; `null`: as many as run at a time.",
    )
    timeout_s: Positive = Field(
        default=60.0,
        description="Longest time for which the class may take to answer; then it is killed, and begins anew.",
    )
    fallback: Literal["uniform", "halton", "sobol"] = Field(
        default="sobol", description="Where parameters come from that the class does not suggest."
    )

    @property
    def is_built_in(self) -> bool:
        """Its points follow from the seed and the number of the simulation alone."""
        return self.class_ in SAMPLERS

    def __str__(self) -> str:
        """The sampler for people: a class without the folder of its file."""
        return os.path.basename(self.class_)

    @model_serializer(mode="wrap")
    def _as_name(self, serialize: Any) -> Any:
        is_name = self == SamplerSettings.model_validate(self.class_)
        return self.class_ if is_name else serialize(self)


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
