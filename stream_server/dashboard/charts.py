"""The charts of the page: Bokeh figures, and what brings their columns up to date."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models.annotations import ColorBar, Legend, LegendItem
from bokeh.models.mappers import LogColorMapper
from bokeh.models.ranges import Range1d
from bokeh.models.sources import ColumnDataSource
from bokeh.models.tools import HoverTool
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from stream_server.analysis.columns import Columns, log_range

# From this share of the cells on it is cheaper to send all of them.
LARGE_SHARE = 0.5

HEIGHT = 300
NARROW = 320
# The names of curves above a chart need some room.
NARROW_WITH_NAMES = 400
NAMES_PER_ROW, CHARACTERS_PER_ROW = 3, 66
MANY_POINTS = 500
POINT_SIZE, SMALL_POINT_SIZE = 7, 4
INK = "#222222"
GRID = "#E4E4E4"
# Bokeh's types tell less of its figures and renderers than is true of them.
Figure = Any
Renderer = Any

TOOLS = "pan,wheel_zoom,box_zoom,reset,save"


def _equal(a: Any, b: Any) -> bool:
    # NaN alone differs from itself.
    return bool(a == b or (a != a and b != b))


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveStyle:
    """The look and the name of a curve; with `has_marks` each of its few points is marked."""

    label: str
    colour: str
    dash: str = "solid"
    has_marks: bool = False


def bring_up_to_date(source: ColumnDataSource, columns: Columns) -> None:
    """Send to a source what changed: values to patch and then rows to append, or everything if that is most of it."""
    before: Any = source.data
    num_before, num_after = (len(next(iter(each.values()), ())) for each in (before, columns))
    patched: dict[str, list[tuple[int, Any]]] = {}
    is_another = before.keys() != columns.keys() or num_after < num_before
    for name, values in {} if is_another else columns.items():
        was = before[name]
        # Comparing whole lists first is done in C, and they are mostly equal.
        if list(values[:num_before]) != list(was):
            rows = [(row, values[row]) for row in range(num_before) if not _equal(values[row], was[row])]
            patched |= {name: rows} if rows else {}
    if is_another or sum(map(len, patched.values())) > LARGE_SHARE * num_before * len(columns):
        source.data = {name: list(values) for name, values in columns.items()}
        return
    if patched:
        source.patch(patched)
    if num_after > num_before:
        source.stream({name: list(values[num_before:]) for name, values in columns.items()})


def chart(title: str, x: str, y: str, **options: Any) -> Figure:
    """An empty figure; its axes are dark, and name what they show and the unit of that."""
    chart: Figure = figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        height=HEIGHT,
        sizing_mode="stretch_width",
        min_width=NARROW,
        tools=TOOLS,
        toolbar_location="right",
        **options,
    )
    chart.toolbar.logo = None
    chart.toolbar.autohide = True
    chart.title.text_color = INK
    chart.title.text_font_size = "14px"
    chart.grid.grid_line_color = GRID
    chart.outline_line_color = None
    for axis in chart.axis:
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = INK
        axis.axis_label_text_color = axis.major_label_text_color = INK
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
    chart.min_border_right = 12
    if options.get("y_axis_type") == "log":
        # One decade may be all there is: with Bokeh's own it would have two labels.
        chart.yaxis.ticker.mantissas = [1, 2, 5]
    return chart


class LineChart:
    """Curves over one axis, in one or several figures that show the same with other scales."""

    def __init__(self, *figures: Figure) -> None:
        self.figures = figures
        self._curves: dict[object, tuple[CurveStyle, ColumnDataSource, list[list[Renderer]]]] = {}
        self._legends: list[Any] = [
            Legend(click_policy="hide", location="center", orientation="horizontal", nrows="auto", margin=2)
            for _ in figures
        ]
        self._hovers = [HoverTool(renderers=[], tooltips=[("", "$name"), ("", "@y at @x")]) for _ in figures]
        for each, legend, hover in zip(figures, self._legends, self._hovers, strict=True):
            legend.border_line_color = None
            legend.label_text_font_size = "12px"
            legend.label_text_color = INK
            each.min_width = NARROW_WITH_NAMES
            each.add_layout(legend, "above")
            each.add_tools(hover)

    def show(self, curves: Mapping[object, tuple[CurveStyle, Columns]], *, on_log: bool = False) -> None:
        """Draw these curves and no others.

        Of two figures the first one has a logarithmic axis. Without anything to draw none is to be seen.
        """
        has_points = any(columns["x"] for _, columns in curves.values())
        for each in self.figures:
            is_shown = has_points and each is self.figures[0 if on_log else -1]
            if each.visible != is_shown:
                each.visible = is_shown
        gone = [key for key in self._curves if key not in curves or curves[key][0] != self._curves[key][0]]
        if gone:
            self._remove(gone)
        new = [key for key in curves if key not in self._curves]
        if new:
            self._add({key: curves[key] for key in new})
        for key, (_, columns) in curves.items():
            bring_up_to_date(self._curves[key][1], columns)

    def _add(self, curves: Mapping[object, tuple[CurveStyle, Columns]]) -> None:
        for key, (style, columns) in curves.items():
            # With its values: a new source is sent as it is at the end of the update, before what was streamed to it.
            source = ColumnDataSource(
                {name: list(values) for name, values in columns.items()}, name=f"curve {style.label}"
            )
            drawn = []
            for each in self.figures:
                look = {"source": source, "color": style.colour, "name": style.label}
                renderers = [each.line("x", "y", line_dash=style.dash, line_width=1.6, **look)]
                if style.has_marks:
                    renderers.append(each.scatter("x", "y", size=5, **look))
                drawn.append(renderers)
            self._curves[key] = (style, source, drawn)
        self._name()

    def _remove(self, gone: Sequence[object]) -> None:
        drawn = [self._curves.pop(key)[2] for key in gone]
        self._name()
        for place, each in enumerate(self.figures):
            removed = [renderer for of_curve in drawn for renderer in of_curve[place]]
            each.renderers = [renderer for renderer in each.renderers if renderer not in removed]

    def _name(self) -> None:
        """Bring legends and tooltips up to date. A row of names must not be wider than the figure."""
        longest = max((len(style.label) for style, *_ in self._curves.values()), default=1)
        num_in_row = max(1, min(NAMES_PER_ROW, CHARACTERS_PER_ROW // longest))
        for place, (legend, hover) in enumerate(zip(self._legends, self._hovers, strict=True)):
            legend.ncols = num_in_row
            legend.items = [
                LegendItem(label=style.label, renderers=list(drawn[place])) for style, _, drawn in self._curves.values()
            ]
            hover.renderers = [drawn[place][-1] for *_, drawn in self._curves.values()]


class BarChart:
    """Bars from left to right, in rows of whole numbers of which the first is at the top."""

    def __init__(
        self, title: str, x: str, y: str, *, name: str, columns: Sequence[str], tooltips: Any, **look: Any
    ) -> None:
        self.figure = chart(title, x, y)
        self.source = ColumnDataSource({column: [] for column in columns}, name=name)
        bars = self.figure.hbar(y=y, left="left", right="right", height=0.8, color="colour", source=self.source, **look)
        self.figure.y_range.flipped = True
        # No tick is between two rows.
        self.figure.yaxis.ticker.min_interval = 1
        self.figure.yaxis.ticker.num_minor_ticks = 0
        self.figure.add_tools(HoverTool(renderers=[bars], tooltips=tooltips))


def timeline() -> BarChart:
    """One bar for each attempt of a simulation, over time."""
    return BarChart(
        "Simulations and their attempts",
        "time since the first began (s)",
        "simulation",
        name="timeline",
        columns=("simulation", "attempt", "left", "right", "state", "colour", "reason"),
        tooltips=[
            ("simulation", "@simulation, attempt @attempt"),
            ("state", "@state @reason"),
            ("time", "@left{0.0} s to @right{0.0} s"),
        ],
    )


def rank_phases() -> BarChart:
    """The phases of each rank at its newest log point: one bar for each rank."""
    bars = BarChart(
        "Ranks and their phases",
        "part of the time since the last log point",
        "rank",
        name="ranks",
        columns=("rank", "phase", "left", "right", "colour"),
        tooltips=[("rank @rank", "@phase: @left to @right")],
        line_color=None,
    )
    bars.figure.x_range = Range1d(start=0, end=1.001)
    bars.figure.yaxis.ticker.desired_num_ticks = 8
    return bars


class ParameterSpace:
    """One point for each simulation, at two of its parameters."""

    def __init__(self) -> None:
        self.figure = chart("Parameter space", "", "")
        names: Sequence[str] = ("simulation", "x", "y", "state", "colour", "error", "received", "attempts")
        self.source = ColumnDataSource({name: [] for name in names}, name="space")
        points = self._points = self.figure.scatter(
            "x", "y", size=POINT_SIZE, color="colour", line_color="white", line_width=0.5, source=self.source
        )
        self.figure.add_tools(
            HoverTool(
                renderers=[points],
                tooltips=[
                    ("simulation", "@simulation"),
                    ("at", "@x, @y"),
                    ("state", "@state after @attempts attempts"),
                    ("time steps", "@received"),
                    ("error", "@error"),
                ],
            )
        )

        self._mapper = LogColorMapper(palette=Viridis256, low=1, high=10)
        self._bar = ColorBar(color_mapper=self._mapper, title="error", visible=False, width=12)
        self.figure.add_layout(self._bar, "right")

    def show_scale(self, errors: Sequence[float]) -> None:
        """Show which colours these errors have; no scale without any."""
        low, high = log_range(errors)
        self._mapper.update(low=low, high=high)
        if self._bar.visible != bool(errors):
            self._bar.visible = bool(errors)

    def show(self, points: Columns, x: str, y: str) -> None:
        """Show these points at two parameters, small ones where there are many."""
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = x, y
        size = POINT_SIZE if len(points["x"]) <= MANY_POINTS else SMALL_POINT_SIZE
        if self._points.glyph.size != size:
            self._points.glyph.size = size
        bring_up_to_date(self.source, points)
