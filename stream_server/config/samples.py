"""The fields of a time step, the time steps of a simulation, and the samples that are made of them."""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stream_server.config.problems import shown, wrong
from stream_server.config.values import Count, Section, one_of_these

MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_TIME_STEPS = 2**31 - 1
BYTES_OF_AN_UNKNOWN_DTYPE = 8


def _only_the_first_may_differ(schema: dict[str, Any]) -> None:
    schema |= {"prefixItems": [schema["items"]], "items": {"type": "integer", "minimum": 1}}


def _only_the_first_differs(extents: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(isinstance(extent, dict) for extent in extents[1:]):
        found = f"{shown(extents)} has a later extent that differs in size"
        raise wrong(found, 'Write {"max": n} for the first extent only, and the largest for the others')
    return extents


Extent = Annotated[
    Count | Annotated[dict[Literal["max"], Count], Field(min_length=1)],
    one_of_these("no extent", 'Write a whole number of 1 or more without quotes, or {"max": n} if it differs in size'),
]
Shape = Annotated[
    tuple[Extent, ...],
    Field(strict=False, max_length=MAX_DIMENSIONS, json_schema_extra=_only_the_first_may_differ),
    AfterValidator(_only_the_first_differs),
]
DTYPE = re.compile(r"[<>=|]?([A-Za-z]\w*|\?)")
# The numeric types that are the same on every machine, by NumPy's names, and their bytes.
VALUE_BYTES = {"bool": 1} | {
    f"{kind}{8 * num_bytes}": num_bytes
    for kind, sizes in {"int": (1, 2, 4, 8), "uint": (1, 2, 4, 8), "float": (2, 4, 8), "complex": (8, 16)}.items()
    for num_bytes in sizes
}


def _check_dtype(value: str) -> str:
    if value in VALUE_BYTES:
        return value
    # A launcher has no other use for NumPy, the import of which is a fifth of its start.
    import numpy as np

    example = 'Write a numeric NumPy type such as "float32", or leave it out to keep what is sent'
    try:
        # Of other texts NumPy makes structures, which it reads like a program.
        dtype = np.dtype(value if DTYPE.fullmatch(value) else "void")
    except (TypeError, ValueError, DeprecationWarning) as error:
        raise wrong(f"{shown(value)} is not a NumPy type", example) from error
    if dtype.name not in VALUE_BYTES:
        raise wrong(f"{shown(value)} is not a numeric type that is the same on every machine", example)
    return dtype.name


class SampleField(Section):
    """One array of a sample. `dtype` is what is kept, a native NumPy name; None keeps what is sent."""

    extents: Shape = Field(
        alias="shape",
        description='Global shape, C order (a Fortran array appears reversed). A first extent `{"max": 5000}` may '
        'differ, from 0 to 5000: from step to step, or with `"per": "simulation"` from simulation to simulation.',
        examples=[[100, 100]],
    )
    dtype: Annotated[str, AfterValidator(_check_dtype)] | None = Field(
        default=None, description='NumPy type that is kept, such as `"float32"`; `null`: as sent.'
    )
    optional: bool = Field(default=False, description="Whether a simulation may leave the field out of a step.")
    per: Literal["step", "simulation"] = Field(
        default="step",
        description='`"simulation"`: the field (a mesh, a coefficient) is sent once per simulation and given with '
        "every sample of it (docs/guide/clients.md#fields-once-per-simulation).",
    )

    @model_validator(mode="after")
    def _check_optional(self) -> Self:
        if self.optional and self.is_static:
            raise wrong("a field that is sent once per simulation cannot be optional", 'Leave "optional" out')
        return self

    @property
    def is_static(self) -> bool:
        """Whether it is sent once per simulation."""
        return self.per == "simulation"

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape; that of a ragged field has the largest first extent."""
        return tuple(extent["max"] if isinstance(extent, dict) else extent for extent in self.extents)

    @property
    def ragged(self) -> bool:
        """Whether the first extent may differ, by step or by simulation."""
        return any(isinstance(extent, dict) for extent in self.extents)

    @property
    def smallest_shape(self) -> tuple[int, ...]:
        """The shape of a ragged field without any value; of another one its shape."""
        return (0, *self.shape[1:]) if self.ragged else self.shape

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row of a ragged field; of another one its shape."""
        return self.shape[1:] if self.ragged else self.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of this field in one kept sample at most, 8 per value while the type is not known."""
        value_bytes = VALUE_BYTES[self.dtype] if self.dtype else BYTES_OF_AN_UNKNOWN_DTYPE
        return math.prod(self.shape) * value_bytes


class TimeStepRange(Section):
    """The labels of the time steps a simulation sends: first, first + every, … last."""

    first: int = Field(default=0, description="Label of the first time step.")
    last: int = Field(description="Label of the last time step: `first` + a multiple of `every`.", examples=[99])
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
        """Number of time steps."""
        return (self.last - self.first) // self.every + 1

    @property
    def labels(self) -> range:
        """The labels in the order of their indices."""
        return range(self.first, self.last + 1, self.every)


class WindowSettings(Section):
    """`samples.window`: a sample is `length` time steps of one simulation, `spacing` apart."""

    length: Annotated[int, Field(ge=2)] = Field(description="Time steps of a sample, 2 or more.", examples=[5])
    spacing: Count = Field(default=1, description="Distance of two neighbouring steps of a sample, in time steps.")
    stride: Count = Field(
        default=1, description="Distance of the first steps of consecutive samples of a simulation, in time steps."
    )

    @property
    def span(self) -> int:
        """Distance from the first to the last step of a sample, in time steps."""
        return (self.length - 1) * self.spacing

    def num_in(self, num_steps: int) -> int:
        """Number of samples that a simulation of `num_steps` time steps makes."""
        return max(0, -(-(num_steps - self.span) // self.stride))


class SampleSettings(Section):
    """`samples`: how samples are made of the time steps that simulations send."""

    window: WindowSettings = Field(
        description="A sample is several time steps of one simulation, as models of trajectories take them."
    )


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
