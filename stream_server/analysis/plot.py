"""Writes the pictures of a run into a folder, or as one page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stream_server.analysis import columns, figures
from stream_server.analysis.columns import COLOURS
from stream_server.analysis.figures import empty
from stream_server.analysis.reading import Line, RunFolder, needs_log_scale, read_histograms, read_records
from stream_server.analysis.run_status import in_words
from stream_server.analysis.simulations import SimulationSummary, simulations_of
from stream_server.analysis.validations import RecordedRollouts, RecordedValidation, read_validation, relative_error
from stream_server.errors import ConfigError
from stream_server.ragged import Array
from stream_server.storage.disk import hold_folder, open_output
from stream_server.storage.ownership import is_ours, name_of

MAX_PARAMETERS = 5
MAX_SINGLE_VALUES = 12
PANEL_INCHES = 2.2
DIFFERENCE = "prediction − truth"
ERROR_MAP = "RdBu_r"

FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 200
TIME = columns.AXES["wall_s"]

OF_RECORDS: dict[str, Callable[[list[Line]], Figure | None]] = {
    "loss": lambda records: figures.lines(columns.losses(records), "batch", "loss"),
    "throughput": lambda records: figures.lines(columns.rates(records), TIME, "samples/s", from_zero=True),
    "buffer": lambda records: figures.lines(columns.buffers(records), TIME, "samples, mean over ranks", from_zero=True),
    "phases": figures.phases,
}


def predictions(validation: RecordedValidation) -> dict[str, Figure]:
    """By what is shown, such as a field: a row for each sample, with truth, prediction and their difference.

    Fields of two and more dimensions are images, those of three and more their middle planes; others are lines, or
    points where there are few values. Truth and prediction of a sample share their colours and axes. Below the
    difference stands the relative error.
    """
    names = dict.fromkeys(name for sample in validation.samples for name in sample.shown)
    return {name: _panels(name, validation) for name in names}


def errors(validation: RecordedValidation) -> Figure | None:
    """The error of each held-out simulation, and of each time step as the mean over these."""
    by_simulation, by_time_step = validation.by_simulation(), validation.by_time_step()
    if not by_simulation:
        return None
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=len(by_time_step) > 1)
    for axes, label, values in ((left, "held-out simulation", by_simulation), (right, "time step", by_time_step)):
        marker = "o" if axes is left or len(values) <= MAX_SINGLE_VALUES else ""
        line = "" if axes is left else "-"
        axes.plot(list(values), list(values.values()), marker=marker, linestyle=line, color=COLOURS[0], markersize=4)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        if needs_log_scale([*by_simulation.values(), *by_time_step.values()]):
            axes.set_yscale("log")
    left.set_ylabel(validation.error_label)
    return figure


def rollouts(validation: RecordedValidation) -> dict[str, Figure]:
    """By field the mean squared error of forecasts by their lead time, and between which values most of them lie."""
    recorded = validation.rollouts
    return {} if recorded is None else {name: _rollout(name, recorded, validation.units) for name in recorded.mse}


def _rollout(name: str, recorded: RecordedRollouts, units: Mapping[str, str]) -> Figure:
    unit = f" (({units[name]})²)" if units.get(name) else ""
    figure, axes = empty("lead time (time steps)", f"mean squared error of {name}{unit}")
    mean = recorded.by_lead_time(name)
    is_finite = np.isfinite(mean)
    x = recorded.lead_times[is_finite]
    num = len(recorded.simulations)
    marker = "o" if len(x) <= MAX_SINGLE_VALUES else ""
    label = f"mean of {num} held-out simulations" if num > 1 else "one held-out simulation"
    axes.plot(x, mean[is_finite], color=COLOURS[0], lw=1.4, marker=marker, markersize=4, label=label)
    if num > 1:
        low, high = np.nanquantile(recorded.mse[name][:, is_finite], (0.1, 0.9), axis=0)
        axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, lw=0, label="from 10 % to 90 % of them")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if needs_log_scale(mean.tolist()):
        axes.set_yscale("log")
    if not is_finite.all():
        axes.set_title(f"not finite from lead time {recorded.lead_times[int(np.argmin(is_finite))]} on", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    return figure


def coverage(simulations: Sequence[SimulationSummary], units: Mapping[str, str]) -> Figure | None:
    """Each simulation as a point in each pair of parameters, at most of the first five; coloured by its state."""
    states = list(dict.fromkeys(each.state for each in simulations))
    if not simulations or not simulations[0].parameters:
        return None
    figure, panels = _pairs(list(simulations[0].parameters)[:MAX_PARAMETERS], units)
    for number, state in enumerate(states):
        of_state = [each for each in simulations if each.state == state]
        label = f"{in_words(state)} ({len(of_state)})"
        marker, colour = "o^sDvPX*"[number % 8], COLOURS[number % len(COLOURS)]
        for (x, y), axes in panels.items():
            axes.plot(*_places(of_state, x, y), marker, color=colour, markersize=4, alpha=0.8, label=label)
    handles, labels = next(iter(panels.values())).get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def coverage_errors(simulations: Sequence[SimulationSummary], units: Mapping[str, str], label: str) -> Figure | None:
    """As `coverage`, with the held-out simulations coloured by their error, called `label`, and all others grey."""
    held_out = [each for each in simulations if each.error is not None]
    if not held_out or not held_out[0].parameters:
        return None
    others = [each for each in simulations if each.error is None]
    figure, panels = _pairs(list(held_out[0].parameters)[:MAX_PARAMETERS], units)
    values = [each.error for each in held_out if each.error is not None]
    for (x, y), axes in panels.items():
        axes.plot(*_places(others, x, y), "o", color="0.8", markersize=3)
        points = axes.scatter(*_places(held_out, x, y), c=values, cmap="viridis", s=24, vmin=0, edgecolors="k", lw=0.4)
    figure.colorbar(points, ax=list(panels.values()), label=label, shrink=0.8)
    return figure


def _panels(name: str, validation: RecordedValidation) -> Figure:
    samples = [sample for sample in validation.samples if name in sample.shown]
    unit = validation.units.get(name, "")
    quantity = f"{name} ({unit})" if unit else name
    if all(truth.size == 1 for truth, _ in (sample.shown[name] for sample in samples)):
        return _single_values([sample.shown[name] for sample in samples], quantity)
    are_images = _plane(samples[0].shown[name][0]).ndim == 2
    titles = ["truth", "prediction", DIFFERENCE] if are_images else ["truth and prediction", DIFFERENCE]
    # Images keep their shape, and would be far apart.
    layout: Literal["compressed", "constrained"] = "compressed" if are_images else "constrained"
    figure = Figure(figsize=(4 * PANEL_INCHES, PANEL_INCHES * len(samples) + 0.4), layout=layout)
    rows = figure.subplots(len(samples), len(titles), squeeze=False)
    for axes, sample in zip(rows, samples, strict=True):
        truth, prediction = (_plane(array) for array in sample.shown[name])
        (_images if are_images else _lines)(figure, axes, truth, prediction, quantity)
        axes[0].set_ylabel(f"simulation {sample.simulation}\ntime step {sample.time_step}", fontsize=8)
        if (error := relative_error(*sample.shown[name])) is not None:
            axes[-1].set_xlabel(f"relative error {error:.2%}", fontsize=8)
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title, fontsize=9)
    if not are_images:
        rows[0][0].legend(frameon=False, fontsize=8)
    return figure


def _single_values(pairs: Sequence[tuple[Array, Array]], quantity: str) -> Figure:
    """A point for each sample of one value: the prediction over the truth, and the line on which both are the same."""
    truths, predictions = (np.concatenate([_plane(array) for array in arrays]) for arrays in zip(*pairs, strict=True))
    figure, axes = empty(f"truth: {quantity}", "prediction")
    if np.isfinite(truths).any():
        axes.axline((float(truths[np.isfinite(truths)][0]),) * 2, slope=1, color="0.7", lw=0.8)
    axes.plot(truths, predictions, "o", color=COLOURS[0], markersize=4)
    return figure


def _images(figure: Figure, axes: Any, truth: Array, prediction: Array, quantity: str) -> None:
    finite = [array[np.isfinite(array)] for array in (truth, prediction)]
    both = np.concatenate(finite) if any(part.size for part in finite) else np.zeros(1)
    difference = prediction.astype(np.float64) - truth
    largest = float(np.max(np.abs(difference[np.isfinite(difference)]), initial=0.0)) or 1.0
    for place, array in zip(axes, (truth, prediction), strict=False):
        shown = place.imshow(array, cmap="viridis", vmin=both.min(), vmax=both.max(), origin="lower")
    # A single letter on its side is another one: v would be >.
    rotation = 90 if len(quantity) > 1 else 0
    figure.colorbar(shown, ax=axes[1], shrink=0.85).set_label(quantity, fontsize=8, rotation=rotation)
    shown = axes[2].imshow(difference, cmap=ERROR_MAP, vmin=-largest, vmax=largest, origin="lower")
    figure.colorbar(shown, ax=axes[2], shrink=0.85).set_label(quantity, fontsize=8, rotation=rotation)
    for place in axes:
        place.set_xticks([])
        place.set_yticks([])


def _lines(figure: Figure, axes: Any, truth: Array, prediction: Array, quantity: str) -> None:
    is_short = truth.size <= MAX_SINGLE_VALUES
    x = np.arange(truth.size)
    axes[0].plot(x, truth.reshape(-1), "o" if is_short else "-", color=COLOURS[0], lw=1.2, label="truth")
    axes[0].plot(x, prediction.reshape(-1), "x" if is_short else "--", color=COLOURS[1], lw=1.2, label="prediction")
    difference = prediction.astype(np.float64).reshape(-1) - truth.reshape(-1)
    axes[1].axhline(0, color="0.7", lw=0.8)
    axes[1].plot(x, difference, "o" if is_short else "-", color=COLOURS[7], lw=1.2, markersize=4)
    axes[1].set_ylabel(quantity, fontsize=8)
    for place in axes:
        place.spines[["top", "right"]].set_visible(False)
        place.xaxis.set_major_locator(MaxNLocator(integer=True))


def _plane(array: Array) -> Array:
    """An array of one or two axes: of more, the middle of the first ones; axes of one value are left out.

    Of complex values it has the magnitude.
    """
    array = np.squeeze(np.abs(array) if np.iscomplexobj(array) else array)
    while array.ndim > 2:
        array = array[array.shape[0] // 2]
    return array.reshape(-1) if array.ndim == 0 else array


def _places(simulations: Sequence[SimulationSummary], x: str, y: str) -> tuple[list[float], list[float]]:
    if x == y:
        return [each.parameters[x] for each in simulations], [0.0] * len(simulations)
    return [each.parameters[x] for each in simulations], [each.parameters[y] for each in simulations]


def _pairs(names: Sequence[str], units: Mapping[str, str]) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """Empty axes for each pair of parameters, below the diagonal; for one parameter alone a single line."""
    labels = {name: f"{name} ({units[name]})" if units.get(name) else name for name in names}
    if len(names) == 1:
        figure, axes = empty(labels[names[0]], "")
        axes.set_yticks([])
        return figure, {(names[0], names[0]): axes}
    num = len(names) - 1
    side = max(4.0, 1.7 * num)
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    grid = figure.subplots(num, num, squeeze=False, sharex="col", sharey="row")
    panels = {}
    for (column, x), (row, y) in combinations(enumerate(names), 2):
        axes = grid[row - 1][column]
        panels[x, y] = axes
        if row == num:
            axes.set_xlabel(labels[x], fontsize=8)
        if column == 0:
            axes.set_ylabel(labels[y], fontsize=8)
        axes.tick_params(labelsize=7)
    for row in range(num):
        for column in range(row + 1, num):
            grid[row][column].set_axis_off()
    return figure, panels


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, the name of its file and the line that says what it shows."""

    name: str
    figure: Figure
    caption: str


def plot(run: RunFolder, to: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write each picture for which there is something to show, in each of the formats; returns the files.

    Raises:
        ConfigError: the run has no metrics yet, or the folder cannot be written.
    """
    pictures = list(pictures_of(run))
    files = []
    try:
        with hold_folder(to):
            for picture in pictures:
                for extension in formats:
                    files.append(to / f"{picture.name}.{extension}")
                    with open(files[-1], "wb", opener=open_output) as file:
                        picture.figure.savefig(file, format=extension, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise ConfigError(f"the pictures cannot be written to {to}: {error}") from error
    return files


def folder_in(run: RunFolder) -> Path:
    """The folder for the pictures in the folder of the run.

    Raises:
        ConfigError: the run is somebody else's, who decides where in it a file is.
    """
    status = run.path.stat()
    if not is_ours(status):
        raise ConfigError(
            f"{run.path} belongs to {name_of(status.st_uid)}: say by --to in which folder of yours the pictures go"
        )
    return run.path / "plots"


def pictures_of(run: RunFolder) -> Iterator[Picture]:
    """All pictures of a run, with the name of the study on each.

    Raises:
        ConfigError: the run has no metrics yet, or a file is damaged.
    """
    study = run.settings
    section = study.get("study", {})
    for picture in _pictures(run, section.get("units", {}), bool(study.get("normalization", {}).get("fields"))):
        picture.figure.suptitle(f"{section.get('name', run.name)}: {picture.caption}", fontsize=9)
        yield picture


def _pictures(run: RunFolder, units: dict[str, str], is_normalized: bool) -> Iterator[Picture]:
    records = read_records(run)
    captions = {"loss": "loss of normalised fields" if is_normalized else "loss"}
    for name, draw in OF_RECORDS.items():
        if (figure := draw(records)) is not None:
            if name == "loss" and is_normalized:
                figure.axes[0].set_ylabel("normalised loss")
            yield Picture(name, figure, captions.get(name, name))
    if (figure := figures.draw_counts(read_histograms(run, "buffer/seen"))) is not None:
        yield Picture("seen", figure, "how often samples were drawn")
    yield from _of_samples(run, units)


def _of_samples(run: RunFolder, units: dict[str, str]) -> Iterator[Picture]:
    validation = read_validation(run)
    by_simulation = {} if validation is None else validation.by_simulation()
    simulations = [replace(each, error=by_simulation.get(each.simulation)) for each in simulations_of(run)]
    if validation is not None:
        after = f"validation after batch {validation.batch:,}"
        for name, figure in predictions(replace(validation, units=units)).items():
            yield Picture(f"prediction-{_file_name(name)}", figure, f"{name}, {after}")
        if (figure_of_errors := errors(validation)) is not None:
            yield Picture("errors", figure_of_errors, f"errors, {after}")
        for name, figure in rollouts(replace(validation, units=units)).items():
            yield Picture(f"rollout-{_file_name(name)}", figure, f"rollouts of {name}, {after}")
    label = "" if validation is None else validation.error_label
    for name, drawn, caption in (
        ("parameters", coverage(simulations, units), "simulations by their parameters"),
        ("parameters-errors", coverage_errors(simulations, units, label), "errors by parameters"),
    ):
        if drawn is not None:
            yield Picture(name, drawn, caption)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
