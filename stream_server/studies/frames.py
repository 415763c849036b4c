"""Tables as DataFrames: the only door to pandas."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stream_server.extras import extra_packages

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]


def frame(columns: Mapping[str, Sequence[Any]], *, index: str | None = None) -> "DataFrame":
    """A DataFrame of these columns, one of which may be its index.

    Raises:
        ConfigError: pandas is not installed.
    """
    with extra_packages("a table"):
        import pandas
    made = pandas.DataFrame(dict(columns))
    return made if index is None else made.set_index(index)
