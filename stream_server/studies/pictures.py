"""Pictures of a run, shown in notebooks: figures of matplotlib by name."""

from base64 import b64encode
from io import BytesIO
from typing import TYPE_CHECKING

from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from stream_server.extras import extra_packages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 100


class Pictures(dict[str, "Figure"]):
    """Figures by name. A notebook shows them all; `pictures["loss"]` is a `matplotlib.figure.Figure`."""

    def _repr_html_(self) -> str:
        return "".join(f'<img alt="{name}" src="data:image/png;base64,{_png(it)}">' for name, it in self.items())


def pictures_of(run: RunFolder, names: tuple[str, ...]) -> Pictures:
    """The pictures with these names, or all for which there is something to show.

    Raises:
        ConfigError: the run has no metrics yet, there is no picture of such a name, or matplotlib is not installed.
    """
    with extra_packages("a picture"):
        from stream_server.analysis import plot
    drawn = {it.name: it.figure for it in plot.pictures_of(run)}
    if missing := [name for name in names if name not in drawn]:
        raise ConfigError(f"there is no picture {missing[0]} of {run.path}; there are {', '.join(drawn)}")
    return Pictures({name: drawn[name] for name in names or drawn})


def _png(figure: "Figure") -> str:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    return b64encode(file.getvalue()).decode()
