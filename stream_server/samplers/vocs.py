"""The parameters of a study in the terms of gest-api, which generators of others understand."""

from collections.abc import Mapping

from gest_api.vocs import VOCS, BaseVariable, ContinuousVariable, DiscreteVariable  # type: ignore[import-untyped]

from stream_server.config.parameters import Bounds
from stream_server.samplers.unit_cube import UnitCube

MOST_VALUES = 1000


class LogVariable(ContinuousVariable):  # type: ignore[misc]
    """A variable that is sampled evenly in its logarithm. A generator that does not know it sees its domain."""


class LogDiscreteVariable(DiscreteVariable):  # type: ignore[misc]
    """Whole numbers that are sampled evenly in their logarithm. A generator that does not know it sees its values."""


def vocs_of(bounds: Mapping[str, Bounds]) -> VOCS:
    """The `VOCS` of a study: its parameters are the variables, and the loss is what is looked for where it is high.

    A whole number, such as the index of a category, is a discrete variable; one that has more than `MOST_VALUES` values
    is continuous, and what is suggested for it is rounded.
    """
    variables = {name: _variable(limits) for name, limits in bounds.items()}
    return VOCS(variables=variables, objectives={"loss": "MAXIMIZE"})


def _variable(limits: Bounds) -> BaseVariable:
    if limits.integer and limits.high - limits.low < MOST_VALUES:
        return (LogDiscreteVariable if limits.log else DiscreteVariable)(
            values=set(range(int(limits.low), int(limits.high) + 1))
        )
    return (LogVariable if limits.log else ContinuousVariable)(domain=[limits.low, limits.high])


def cube_of(vocs: VOCS) -> UnitCube:
    """The unit cube of the variables.

    Raises:
        ValueError: the values of a discrete variable are not consecutive whole numbers.
    """
    return UnitCube([_bounds(name, variable) for name, variable in vocs.variables.items()])


def _bounds(name: str, variable: BaseVariable) -> Bounds:
    if not isinstance(variable, DiscreteVariable):
        low, high = variable.domain
        return Bounds.model_validate([low, high, "log"] if isinstance(variable, LogVariable) else [low, high])
    values = sorted(variable.values)
    if len(values) < 2 or values != list(range(values[0], values[0] + len(values))):
        raise ValueError(f"the values of {name} must be consecutive whole numbers, such as {{0, 1, 2}}, not {values}")
    scale = ["log"] if isinstance(variable, LogDiscreteVariable) else []
    return Bounds.model_validate([values[0], values[-1], *scale, "integer"])
