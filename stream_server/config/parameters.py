"""The section `parameters`: what differs from one simulation to the next."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.config.problems import nearest, shown
from stream_server.config.section import Section
from stream_server.config.values import CLASS_REFERENCE, FilePath, Name, wrong

SAMPLERS = ("uniform", "lhs", "halton", "sobol")


def _check_sampler(value: str) -> str:
    if value not in SAMPLERS and not CLASS_REFERENCE.fullmatch(value):
        meant = nearest(value, SAMPLERS)
        known = f"Write one of {', '.join(SAMPLERS)}, or FILE.py:Class"
        raise wrong(f"{shown(value)} is no sampler", f"Write {shown(meant)}" if meant else known)
    return value


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

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        number = {"type": "number"}
        return {"type": "array", "prefixItems": [number, number, {"const": "log"}], "items": False, "minItems": 2}

    @model_serializer
    def _as_list(self) -> list[float | str]:
        return [self.low, self.high, "log"] if self.log else [self.low, self.high]


class Parameters(Section):
    """`parameters`: what differs from one simulation to the next."""

    bounds: dict[Name, Bounds] | None = Field(
        default=None, description='Range of each parameter, [low, high] or [low, high, "log"].'
    )
    file: FilePath | None = Field(default=None, description="CSV file: a header of names, one row per simulation.")
    sampler: Annotated[
        str,
        AfterValidator(_check_sampler),
        WithJsonSchema(
            {"anyOf": [{"enum": list(SAMPLERS)}, {"type": "string", "pattern": f"^{CLASS_REFERENCE.pattern}$"}]}
        ),
    ] = Field(default="uniform", description="How points are chosen within the bounds, or FILE.py:Class.")
