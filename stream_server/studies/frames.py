"""Tables as DataFrames: the only door to pandas."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stream_server.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]


def frame(columns: Mapping[str, Sequence[Any]], *, index: str | None = None) -> "DataFrame":
    """A DataFrame of these columns, one of which may be its index.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ConfigError("pandas is not installed: pip install 'stream-server[analysis]'") from error
    made = pandas.DataFrame(dict(columns))
    return made if index is None else made.set_index(index)
