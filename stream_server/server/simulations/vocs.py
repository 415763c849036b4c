"""The parameters of a study in the terms of gest-api, which generators of others understand."""

from collections.abc import Mapping

from gest_api.vocs import VOCS, ContinuousVariable  # type: ignore[import-untyped]

from stream_server.config.parameters import Bounds


class LogVariable(ContinuousVariable):  # type: ignore[misc]
    """A variable that is sampled evenly in its logarithm. A generator that does not know it sees its domain."""


def vocs_of(bounds: Mapping[str, Bounds]) -> VOCS:
    """The `VOCS` of a study: its parameters are the variables, and the loss is what is looked for where it is high."""
    variables = {
        name: (LogVariable if limit.log else ContinuousVariable)(domain=[limit.low, limit.high])
        for name, limit in bounds.items()
    }
    return VOCS(variables=variables, objectives={"loss": "MAXIMIZE"})
