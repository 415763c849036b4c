"""Writes the pictures of a run into a folder."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from stream_server.analysis import figures
from stream_server.analysis.reading import Line, RunFolder, read_histograms, read_records
from stream_server.errors import ConfigError

FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 200

OF_RECORDS: dict[str, Callable[[list[Line]], Figure | None]] = {
    "loss": figures.losses,
    "throughput": figures.throughput,
    "buffer": figures.buffer,
    "phases": figures.phases,
}


def plot(run: RunFolder, to: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write each picture for which there is something to show, in each of the formats; gives the files.

    Raises:
        ConfigError: the run has no metrics yet, or the folder cannot be written.
    """
    drawn = list(pictures(run))
    files = []
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn:
            for extension in formats:
                files.append(to / f"{name}.{extension}")
                figure.savefig(files[-1], dpi=DOTS_PER_INCH)
    except OSError as error:
        raise ConfigError(f"the pictures cannot be written to {to}: {error}") from error
    return files


def pictures(run: RunFolder) -> Iterator[tuple[str, Figure]]:
    """Each picture for which there is something to show, with its name.

    Raises:
        ConfigError: the run has no metrics yet.
    """
    records = read_records(run)
    for name, draw in OF_RECORDS.items():
        figure = draw(records)
        if figure is not None:
            yield name, figure
    figure = figures.seen(read_histograms(run, "buffer/seen"))
    if figure is not None:
        yield "seen", figure
