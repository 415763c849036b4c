"""The output of notebooks: tables, pictures, and text that changes while a cell runs.

The only door to IPython and pandas.

Why: docs/decisions/0082-status-in-a-notebook.md
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from stream_server.extras import extra_packages

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped]

DOTS_PER_INCH = 100


@contextmanager
def changeable_output() -> Iterator[Callable[[object], None] | None]:
    """A function that shows an object below the running cell, in place of the one before; None outside of notebooks.

    What was shown is gone when the context is left.
    """
    # Where nobody has imported IPython there is no notebook; one in a terminal has no kernel.
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        yield None
        return
    from IPython.display import DisplayHandle

    handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
    handle.display({}, raw=True)
    try:
        yield handle.update
    finally:
        handle.update({}, raw=True)


def frame(columns: Mapping[str, Sequence[Any]], *, index: str | None = None) -> "DataFrame":
    """A DataFrame of these columns, one of which may be its index.

    Raises:
        ConfigError: pandas is not installed.
    """
    with extra_packages("a table"):
        import pandas
    table = pandas.DataFrame(dict(columns))
    return table if index is None else table.set_index(index)


class Pictures(dict[str, "Figure"]):
    """Figures by name. A notebook shows them all; `pictures["loss"]` is a `matplotlib.figure.Figure`."""

    def _repr_html_(self) -> str:
        from stream_server.analysis.figures import image_of

        return "".join(image_of(each, name, DOTS_PER_INCH) for name, each in self.items())


def pictures_of(run: RunFolder, names: tuple[str, ...]) -> Pictures:
    """The pictures with these names, or all for which there is something to show.

    Raises:
        ConfigError: the run has no metrics yet, there is no picture of such a name, or matplotlib is not installed.
    """
    with extra_packages("a picture"):
        from stream_server.analysis import plot
    drawn = {picture.name: picture.figure for picture in plot.pictures_of(run)}
    if missing := [name for name in names if name not in drawn]:
        raise ConfigError(f"there is no picture {missing[0]} of {run.path}; there are {', '.join(drawn)}")
    return Pictures({name: drawn[name] for name in names or drawn})
