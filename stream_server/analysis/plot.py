"""Writes the pictures of a run into a folder, or as one page."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from stream_server.analysis import columns, figures, sample_figures
from stream_server.analysis.reading import Line, RunFolder, read_histograms, read_records
from stream_server.analysis.simulations import simulations_of
from stream_server.analysis.validations import read_validation
from stream_server.errors import ConfigError
from stream_server.storage.disk import by_own_links, for_result, held, read_text
from stream_server.storage.ownership import is_ours, name_of

FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 200
TIME = columns.AXES["wall_s"]

OF_RECORDS: dict[str, Callable[[list[Line]], Figure | None]] = {
    "loss": lambda it: figures.lines(columns.losses(it), "batch", "loss"),
    "throughput": lambda it: figures.lines(columns.rates(it), TIME, "samples/s", from_zero=True),
    "buffer": lambda it: figures.lines(columns.buffers(it), TIME, "samples, mean over ranks", from_zero=True),
    "phases": figures.phases,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, the name of its file and the line that says what it shows."""

    name: str
    figure: Figure
    caption: str


def plot(run: RunFolder, to: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write each picture for which there is something to show, in each of the formats; gives the files.

    Raises:
        ConfigError: the run has no metrics yet, or the folder cannot be written.
    """
    pictures = list(pictures_of(run))
    files = []
    try:
        with held(to):
            for picture in pictures:
                for extension in formats:
                    files.append(to / f"{picture.name}.{extension}")
                    with open(files[-1], "wb", opener=for_result) as file:
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
    study = settings_of(run)
    section = study.get("study", {})
    for picture in _pictures(run, section.get("units", {}), bool(study.get("normalization", {}).get("fields"))):
        picture.figure.suptitle(f"{section.get('name', run.name)}: {picture.caption}", fontsize=9)
        yield picture


def settings_of(run: RunFolder) -> dict[str, Any]:
    """The resolved study.json of a run; empty if there is none that can be read."""
    try:
        plain = json.loads(read_text(run.path / "study.json", opener=by_own_links))
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _pictures(run: RunFolder, units: dict[str, str], is_normalized: bool) -> Iterator[Picture]:
    records = read_records(run)
    captions = {"loss": "loss of normalised fields" if is_normalized else "loss"}
    for name, draw in OF_RECORDS.items():
        figure = draw(records)
        if figure is not None:
            if name == "loss" and is_normalized:
                figure.axes[0].set_ylabel("normalised loss")
            yield Picture(name, figure, captions.get(name, name))
    figure = figures.seen(read_histograms(run, "buffer/seen"))
    if figure is not None:
        yield Picture("seen", figure, "how often samples were drawn")
    yield from _of_samples(run, units)


def _of_samples(run: RunFolder, units: dict[str, str]) -> Iterator[Picture]:
    validation = read_validation(run)
    by_simulation = {} if validation is None else validation.by_simulation()
    simulations = [replace(it, error=by_simulation.get(it.simulation)) for it in simulations_of(run)]
    if validation is not None:
        after = f"validation after batch {validation.batch:,}"
        for name, figure in sample_figures.predictions(replace(validation, units=units)).items():
            yield Picture(f"prediction-{_file_name(name)}", figure, f"{name}, {after}")
        figure_of_errors = sample_figures.errors(validation)
        if figure_of_errors is not None:
            yield Picture("errors", figure_of_errors, f"errors, {after}")
        for name, figure in sample_figures.rollouts(replace(validation, units=units)).items():
            yield Picture(f"rollout-{_file_name(name)}", figure, f"rollouts of {name}, {after}")
    label = "" if validation is None else validation.error_label
    for name, drawn, caption in (
        ("parameters", sample_figures.coverage(simulations, units), "simulations by their parameters"),
        ("parameters-errors", sample_figures.coverage_errors(simulations, units, label), "errors by parameters"),
    ):
        if drawn is not None:
            yield Picture(name, drawn, caption)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
