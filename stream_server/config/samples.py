"""The fields of a time step, the time steps of a simulation, and the samples that are made of them."""

import math
import re
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stream_server.config.problems import shown, wrong
from stream_server.config.values import Count, Section

MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_TIME_STEPS = 2**31 - 1
BYTES_OF_AN_UNKNOWN_DTYPE = 8
Shape = Annotated[tuple[Count, ...], Field(strict=False, max_length=MAX_DIMENSIONS)]
DTYPE = re.compile(r"[<>=|]?([A-Za-z]\w*|\?)")


def _check_dtype(value: str) -> str:
    example = 'Write a numeric NumPy type such as "float32", or leave it out to keep what is sent'
    try:
        # Of other texts NumPy makes structures, which it reads like a program.
        dtype = np.dtype(value if DTYPE.fullmatch(value) else "void")
    except (TypeError, ValueError, DeprecationWarning) as error:
        raise wrong(f"{shown(value)} is not a NumPy type", example) from error
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise wrong(f"{shown(value)} is not a numeric type that is the same on every machine", example)
    return dtype.name


class SampleField(Section):
    """One array of a sample. `dtype` is what is kept, a native NumPy name; None keeps what is sent."""

    shape: Shape = Field(description="Global shape in C order; [] is a scalar.", examples=[[100, 100]])
    dtype: Annotated[str, AfterValidator(_check_dtype)] | None = Field(
        default=None, description="NumPy type that is kept; null keeps what is sent."
    )
    optional: bool = Field(default=False, description="Whether a simulation may leave the field out of a step.")
    per: Literal["step", "simulation"] = Field(
        default="step", description='"simulation": the field is sent once per simulation, and given with every sample.'
    )

    @model_validator(mode="after")
    def _check_optional(self) -> Self:
        if self.optional and self.is_static:
            raise wrong("a field that is sent once per simulation cannot be optional", 'Leave "optional" out')
        return self

    @property
    def is_static(self) -> bool:
        """It is sent once per simulation."""
        return self.per == "simulation"

    @property
    def num_bytes(self) -> int:
        """Bytes of this field in one kept sample, 8 per value while the type is not known."""
        value_bytes = np.dtype(self.dtype).itemsize if self.dtype else BYTES_OF_AN_UNKNOWN_DTYPE
        return math.prod(self.shape) * value_bytes


class TimeStepRange(Section):
    """The labels of the time steps a simulation sends: first, first + every, … last."""

    first: int = Field(default=0, description="Label of the first time step.")
    last: int = Field(description="Label of the last time step.", examples=[99])
    every: Count = Field(default=1, description="Difference of two neighbouring labels.")

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
        return (self.last - self.first) // self.every + 1

    @property
    def labels(self) -> range:
        """The labels in the order of their indices."""
        return range(self.first, self.last + 1, self.every)


class WindowSettings(Section):
    """`samples.window`: a sample is `length` time steps of one simulation, `spacing` apart."""

    length: Annotated[int, Field(ge=2)] = Field(description="Time steps of a sample.", examples=[5])
    spacing: Count = Field(default=1, description="Distance of two neighbouring steps of a sample, in time steps.")
    stride: Count = Field(
        default=1, description="Distance of the first steps of consecutive samples of a simulation, in time steps."
    )

    @property
    def span(self) -> int:
        """How far the last step of a sample is from its first, in time steps."""
        return (self.length - 1) * self.spacing

    def num_in(self, num_steps: int) -> int:
        """How many samples a simulation of `num_steps` time steps makes."""
        return max(0, -(-(num_steps - self.span) // self.stride))


class SampleSettings(Section):
    """`samples`: how samples are made of the time steps that simulations send."""

    window: WindowSettings = Field(description="A sample is several time steps of one simulation.")


def _from_shape(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return {"shape": value}
    if not isinstance(value, dict | SampleField):
        raise wrong(f"{shown(value)} is not a shape", 'Write a list such as [100, 100], or {"shape": [100, 100]}')
    return value


def _from_count(value: Any) -> Any:
    if isinstance(value, dict | TimeStepRange | None):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TIME_STEPS:
        found = f"{shown(value)} is not a number of time steps"
        raise wrong(found, 'Write 1 or more, {"first", "last", "every"}, or null when it is not known')
    return {"last": value - 1}


ShapeOrField = Annotated[SampleField, BeforeValidator(_from_shape, json_schema_input_type=Shape | SampleField)]
CountOrTimeSteps = Annotated[
    TimeStepRange | None,
    BeforeValidator(
        _from_count, json_schema_input_type=Annotated[int, Field(ge=1, le=MAX_TIME_STEPS)] | TimeStepRange | None
    ),
]
