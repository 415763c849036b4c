"""The charts of a prediction: the truth, what the model predicts, and the difference, as lines or as pictures."""

from collections.abc import Iterable

import numpy as np
from bokeh.models.annotations import ColorBar
from bokeh.models.mappers import LinearColorMapper
from bokeh.models.sources import ColumnDataSource
from bokeh.models.tools import HoverTool
from bokeh.palettes import RdBu11, Viridis256, interp_palette

from stream_server.analysis.validations import RenderedSample, relative_error
from stream_server.dashboard.charts import chart
from stream_server.ragged import Array

TITLES = ("Truth", "Prediction", "Difference")
TRUTH, DIFFERENCE = "#0072B2", "#D55E00"
# A picture on the screen has no more points than this along a side.
MAX_SIDE = 256


class PredictionCharts:
    """Three figures beside each other, which show one sample: pictures if it has two dimensions or more, else lines."""

    def __init__(self) -> None:
        self.figures = [chart(title, "", "") for title in TITLES]
        # Truth and prediction are compared on one scale, and zoomed together.
        self.figures[1].x_range, self.figures[1].y_range = self.figures[0].x_range, self.figures[0].y_range
        values = LinearColorMapper(palette=Viridis256, nan_color="#FFFFFF")
        differences = LinearColorMapper(palette=interp_palette(RdBu11, 255), nan_color="#FFFFFF")
        self._mappers = (values, values, differences)
        self._lines = [ColumnDataSource({"x": [], "y": []}, name=f"line {title}") for title in TITLES]
        self._images = [
            ColumnDataSource({name: [] for name in ("image", "dw", "dh")}, name=f"picture {title}") for title in TITLES
        ]
        self._bars = [ColorBar(color_mapper=mapper, width=12) for mapper in self._mappers]
        self._shown: tuple[object, ...] = ()
        for figure, line, image, mapper, bar in zip(
            self.figures, self._lines, self._images, self._mappers, self._bars, strict=True
        ):
            colour = DIFFERENCE if line is self._lines[-1] else TRUTH
            figure.line("x", "y", source=line, color=colour, line_width=1.6)
            drawn = figure.image(image="image", x=0, y=0, dw="dw", dh="dh", source=image, color_mapper=mapper)
            figure.add_tools(HoverTool(renderers=[drawn], tooltips=[("at", "$x{0}, $y{0}"), ("", "@image")]))
            figure.add_layout(bar, "right")
            figure.x_range.range_padding = figure.y_range.range_padding = 0

    def show(self, truth: Array, prediction: Array, *, name: str, unit: str) -> None:
        """Show this sample, unless it is shown already."""
        if self._shown and self._shown[0] is truth and self._shown[1] is prediction:
            return
        self._shown = (truth, prediction)
        error = relative_error(truth, prediction)
        assert self.figures[2].title is not None
        self.figures[2].title.text = TITLES[2] + ("" if error is None else f", relative error {error:.2%}")
        seen, predicted = flat(truth), flat(prediction)
        titled = f"{name} ({unit})" if unit else name
        arrays = (seen, predicted, predicted - seen)
        is_line = seen.ndim == 1
        both = np.concatenate((seen.ravel(), predicted.ravel()))
        low, high = finite_range(both)
        self._mappers[0].update(low=low, high=high)
        # Zero is in the middle of the colours.
        largest = max(map(abs, finite_range(arrays[2])))
        self._mappers[2].update(low=-largest, high=largest)
        for figure, line, image, bar, array in zip(
            self.figures, self._lines, self._images, self._bars, arrays, strict=True
        ):
            line.data = {"x": np.arange(len(array)), "y": array} if is_line else {"x": [], "y": []}
            height, width = (0, 0) if is_line else array.shape
            image.data = (
                {"image": [], "dw": [], "dh": []} if is_line else {"image": [array], "dw": [width], "dh": [height]}
            )
            # Rows count from the bottom, as in the pictures of `stream-study plot`, and a square is square.
            figure.match_aspect = not is_line
            # The title stands on its side, where a single letter is another one: v would be >.
            bar.update(visible=not is_line, title=titled if len(titled) > 1 else "")
            figure.xaxis.axis_label = "position"
            figure.yaxis.axis_label = titled if is_line else "row"


def flat(array: Array) -> Array:
    """The array as a line or a picture of moderate size: of more dimensions the middle of each of the first ones."""
    values = np.abs(array) if np.iscomplexobj(array) else array
    values = np.atleast_1d(np.asarray(values, dtype=np.float32))
    while values.ndim > 2:
        values = values[len(values) // 2]
    steps = tuple(slice(None, None, -(-length // MAX_SIDE)) for length in values.shape)
    return values if values.ndim == 1 else np.ascontiguousarray(values[steps])


def finite_range(values: Array) -> tuple[float, float]:
    """The smallest and the largest finite value, apart from each other."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sample_name(sample: RenderedSample) -> str:
    """The simulation and the time step of a held-out sample."""
    return f"simulation {sample.simulation}, time step {sample.time_step}"


def single_values(samples: Iterable[RenderedSample], name: str) -> list[tuple[str, str]]:
    """Truth and prediction of each held-out sample of a single value, as the rows of a table."""
    rows = []
    for sample in samples:
        truth, prediction = sample.shown[name]
        error = relative_error(truth, prediction)
        off = "" if error is None else f", off by {error:.2%}"
        rows.append((sample_name(sample), f"truth {truth.item():.4g}, prediction {prediction.item():.4g}{off}"))
    return rows
