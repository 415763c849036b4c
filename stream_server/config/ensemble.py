"""The sections that say which simulations there are and what they send: study, parameters, simulation."""

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, WithJsonSchema, model_serializer, model_validator

from stream_server.config.job import Job
from stream_server.config.problems import nearest, shown
from stream_server.config.section import Section, filled_in
from stream_server.config.values import (
    CLASS_REFERENCE,
    Command,
    Count,
    FilePath,
    Name,
    Paths,
    Positive,
    StudyName,
    wrong,
)

MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_TIME_STEPS = 2**31 - 1
BYTES_OF_AN_UNKNOWN_DTYPE = 8
SAMPLERS = ("uniform", "lhs", "halton", "sobol")


def _check_dtype(value: str) -> str:
    example = 'Write a numeric NumPy type such as "float32", or leave it out to keep what is sent'
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError) as error:
        raise wrong(f"{shown(value)} is no NumPy type", example) from error
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise wrong(f"{shown(value)} is no numeric type that is the same on every machine", example)
    return dtype.name


def _check_sampler(value: str) -> str:
    if value not in SAMPLERS and not CLASS_REFERENCE.fullmatch(value):
        meant = nearest(value, SAMPLERS)
        known = f"Write one of {', '.join(SAMPLERS)}, or FILE.py:Class"
        raise wrong(f"{shown(value)} is no sampler", f"Write {shown(meant)}" if meant else known)
    return value


class SampleField(Section):
    """One array of a sample. `dtype` is what is kept, a native NumPy name; None keeps what is sent."""

    shape: Annotated[tuple[Count, ...], Field(strict=False, max_length=MAX_DIMENSIONS)] = Field(
        description="Global shape in C order; [] is a scalar.", examples=[[100, 100]]
    )
    dtype: Annotated[str, AfterValidator(_check_dtype)] | None = Field(
        default=None, description="NumPy type that is kept; null keeps what is sent."
    )
    optional: bool = Field(default=False, description="Whether a simulation may leave the field out of a step.")

    @model_validator(mode="before")
    @classmethod
    def _from_shape(cls, value: Any) -> Any:
        return {"shape": value} if isinstance(value, list | tuple) else value

    @property
    def num_bytes(self) -> int:
        """Bytes of this field in one kept sample, 8 per value while the type is not known."""
        value_bytes = np.dtype(self.dtype).itemsize if self.dtype else BYTES_OF_AN_UNKNOWN_DTYPE
        return math.prod(self.shape) * value_bytes


class TimeSteps(Section):
    """The labels of the time steps a simulation sends: first, first + every, … last."""

    first: int = Field(default=0, description="Label of the first time step.")
    last: int = Field(description="Label of the last time step.", examples=[99])
    every: Count = Field(default=1, description="Difference of two neighbouring labels.")

    @model_validator(mode="before")
    @classmethod
    def _from_count(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 1 <= value <= MAX_TIME_STEPS:
                raise wrong(f"{value} is no number of time steps", "Write 1 or more, or null when it is not known")
            return {"last": value - 1}
        if not isinstance(value, dict | TimeSteps):
            raise wrong(
                f"{shown(value)} is no number of time steps", 'Write a count, null, or {"first", "last", "every"}'
            )
        return value

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.last < self.first:
            raise wrong(f"last ({self.last}) is before first ({self.first})", f"Write a last of {self.first} or more")
        beyond = (self.last - self.first) % self.every
        if beyond:
            raise wrong(
                f"last ({self.last}) is not first + a multiple of every ({self.first} + n × {self.every})",
                f'Write "last": {self.last - beyond} or {self.last - beyond + self.every}',
            )
        if self.num > MAX_TIME_STEPS:
            raise wrong(f"these are {self.num} time steps", f"Write at most {MAX_TIME_STEPS}")
        return self

    @property
    def num(self) -> int:
        """How many time steps there are."""
        return len(self.labels)

    @property
    def labels(self) -> range:
        """The labels in the order of their indices."""
        return range(self.first, self.last + 1, self.every)


class Study(Section):
    """`study`: the ensemble and the samples it produces."""

    name: StudyName = filled_in("Name of the study; the name of its folder.")
    output_dir: FilePath = filled_in("Where results go; runs/<name>.")
    simulations: Count = Field(description="Number of training simulations.", examples=[100])
    time_steps: (
        Annotated[
            TimeSteps,
            WithJsonSchema(
                {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_TIME_STEPS}, {"$ref": "#/$defs/TimeSteps"}]}
            ),
        ]
        | None
    ) = Field(
        default=None, description="Time steps of a simulation: their count, {first, last, every}, or null: unknown."
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of parameters, buffers and weights.")
    fields: Annotated[
        dict[
            Name,
            Annotated[
                SampleField,
                WithJsonSchema(
                    {
                        "anyOf": [
                            {
                                "type": "array",
                                "items": {"type": "integer", "minimum": 1},
                                "maxItems": MAX_DIMENSIONS,
                            },
                            {"$ref": "#/$defs/SampleField"},
                        ]
                    }
                ),
            ],
        ],
        Field(min_length=1, max_length=MAX_FIELDS),
    ] = Field(description="What one sample holds.", examples=[{"temperature": [100, 100]}])


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
            raise wrong(f"{shown(value)} is no range", form)
        low, high, *rest = value
        for limit in (low, high):
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
                raise wrong(f"{shown(limit)} in {shown(value)} is no finite number", form)
        if rest and rest != ["log"]:
            raise wrong(f"{shown(rest[0])} in {shown(value)} is no scale", form)
        if low >= high:
            instead = f"Write [{high}, {low}]" if low > high else "Write two different limits"
            raise wrong(f"low ({low}) must be less than high ({high})", instead)
        if rest and low <= 0:
            raise wrong(
                f"low ({low}) must be positive on a logarithmic scale", 'Write a positive low or leave "log" out'
            )
        return {"low": float(low), "high": float(high), "log": bool(rest)}

    @model_serializer
    def _as_list(self) -> list[float | str]:
        return [self.low, self.high, "log"] if self.log else [self.low, self.high]


class Parameters(Section):
    """`parameters`: what differs from one simulation to the next."""

    bounds: (
        dict[
            Name,
            Annotated[
                Bounds,
                WithJsonSchema(
                    {
                        "type": "array",
                        "prefixItems": [{"type": "number"}, {"type": "number"}, {"const": "log"}],
                        "items": False,
                        "minItems": 2,
                    }
                ),
            ],
        ]
        | None
    ) = Field(default=None, description='Range of each parameter, [low, high] or [low, high, "log"].')
    file: FilePath | None = Field(default=None, description="CSV file: a header of names, one row per simulation.")
    sampler: Annotated[
        str,
        AfterValidator(_check_sampler),
        WithJsonSchema(
            {"anyOf": [{"enum": list(SAMPLERS)}, {"type": "string", "pattern": f"^{CLASS_REFERENCE.pattern}$"}]}
        ),
    ] = Field(default="uniform", description="How points are chosen within the bounds, or FILE.py:Class.")


class Simulation(Section):
    """`simulation`: how one simulation is run, and what happens when it fails."""

    command: Command | None = Field(
        default=None, description="Program and arguments with {placeholders}; null: simulations attach by themselves."
    )
    ranks: Count = Field(default=1, description="MPI ranks of one simulation.")
    templates: Paths = Field(default=(), description="Text files rendered into each attempt's folder.")
    timeout_s: Positive = Field(default=600.0, description="Longest time without progress.")
    retries: Annotated[int, Field(ge=0)] = Field(default=2, description="Attempts after the first.")
    on_failure: Literal["give_up", "redraw", "stop"] = Field(
        default="give_up", description="What follows the last failed attempt."
    )
    max_failed: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Share of simulations that may fail before the study stops."
    )
    per_job: Count = Field(default=1, description="Simulations that share one job.")
    keep_folders: Literal["all", "failed"] = Field(default="all", description="Which attempts' folders stay.")
    job: Job = Field(default_factory=Job, description="What the job of a simulation asks for.")
