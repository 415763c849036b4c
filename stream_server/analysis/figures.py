"""The pictures of a run, one function for each."""

import math
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stream_server.analysis.columns import COLOURS, Curves
from stream_server.analysis.reading import Line, is_validation_loss, names_in, needs_log_scale

SIZE_INCHES = (6.0, 3.6)
NUM_PHASES = len(COLOURS) - 1


def lines(curves: Curves, x: str, y: str, *, from_zero: bool = False) -> Figure | None:
    """Curves over an axis that starts at zero, or is logarithmic where that shows more."""
    if not curves:
        return None
    figure, axes = empty(x, y)
    for (name, columns), colour in zip(curves.items(), _colours(len(curves)), strict=True):
        marker = "o" if is_validation_loss(name) else ""
        axes.plot(columns["x"], columns["y"], color=colour, marker=marker, markersize=3, linewidth=1.2, label=name)
    if from_zero:
        axes.set_ylim(bottom=0)
    elif needs_log_scale(value for columns in curves.values() for value in columns["y"]):
        axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def phases(records: list[Line]) -> Figure | None:
    """The share of the time of each phase, over the time of the training; the longest phase is at the bottom."""
    names = [name for name in names_in(records) if name.startswith("time/")]
    points = [record for record in records if any(name in record for name in names)]
    if not points:
        return None
    shares = {name.removeprefix("time/"): [point.get(name, 0.0) for point in points] for name in names}
    longest = sorted(shares, key=lambda name: -sum(shares[name]))
    areas = {name.replace("_", " "): shares[name] for name in longest[:NUM_PHASES]}
    if len(longest) > NUM_PHASES:
        areas["other phases"] = [
            sum(rest) for rest in zip(*(shares[name] for name in longest[NUM_PHASES:]), strict=True)
        ]
    figure, axes = empty("training time (s)", "part of the time")
    axes.stackplot(
        [point["wall_s"] for point in points], list(areas.values()), labels=list(areas), colors=_colours(len(areas))
    )
    axes.set_ylim(0, 1)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure


def draw_counts(histograms: list[Line]) -> Figure | None:
    """Number of draws of the samples in the buffers, before these ran empty at the end.

    An interval of several numbers of draws is as wide as these, and as high as if its samples were spread evenly over
    them.
    """
    if not histograms:
        return None
    line = while_full(histograms)
    figure, axes = empty("times drawn", "samples in the buffers")
    rows = draws_of_samples(line)
    axes.bar(
        [first - 0.5 for first, _, _ in rows],
        [num / (last - first + 1) for first, last, num in rows],
        [last - first + 1 for first, last, _ in rows],
        align="edge",
        color=COLOURS[0],
        edgecolor="white",
        linewidth=0.5,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"after batch {line['batch']}", fontsize=9)
    return figure


def while_full(histograms: Sequence[Line]) -> Line:
    """The latest of the histograms of buffers that were at least half as full as they ever were; there is one."""
    sizes = [sum(num for *_, num in line["intervals"]) for line in histograms]
    return histograms[max(position for position, size in enumerate(sizes) if 2 * size >= max(sizes))]


def draws_of_samples(histogram: Line) -> list[tuple[int, int, int]]:
    """The intervals of a histogram of draws: the smallest and largest number of draws, and how many samples."""
    # The ends of an interval are whole numbers only where a value is the end.
    return [(math.ceil(lower), math.floor(upper), num) for lower, upper, num in histogram["intervals"]]


def empty(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def image_of(figure: Figure, alt: str, dots_per_inch: int) -> str:
    """An element of HTML with the picture in it; `alt` stands for it, and is HTML, too."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=dots_per_inch)
    return f'<img alt="{alt}" src="data:image/png;base64,{b64encode(file.getvalue()).decode()}">'


def _colours(num: int) -> list[str]:
    return [COLOURS[position % len(COLOURS)] for position in range(num)]
