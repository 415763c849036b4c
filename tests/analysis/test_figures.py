"""The figures of a run, and what they show."""

import math
from pathlib import Path
from typing import Any

import pytest

from stream_server.analysis import figures
from stream_server.analysis.plot import OF_RECORDS, plot
from stream_server.analysis.reading import RunFolder, read_histograms, read_records
from stream_server.errors import ConfigError
from stream_server.server.metrics.histogram import Histogram
from tests.analysis.logged_run import log_run

pytestmark = pytest.mark.slow

PICTURES = ["buffer", "loss", "phases", "seen", "throughput"]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(log_run(tmp_path / "heat"))


def drawn(figure: Any) -> Any:
    """The axes of a figure."""
    assert figure is not None
    return figure.axes[0]


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_losses_of_training_and_validation_are_drawn_over_batches(run: RunFolder) -> None:
    axes = drawn(OF_RECORDS["loss"](read_records(run)))
    curves = lines(axes)
    assert curves["train/loss"] == ([10, 20, 30, 40, 50], [1 / 10, 1 / 20, 1 / 30, 1 / 40, 1 / 50])
    assert curves["val/loss"] == ([20, 40], [0.1, 0.05])


@pytest.mark.parametrize(("least", "scale"), [(0.02, "linear"), (0.01, "log")])
def test_two_decades_make_a_logarithmic_axis(least: float, scale: str) -> None:
    records = [{"batch": 10, "train/loss": 1.0}, {"batch": 20, "train/loss": least}]
    assert drawn(OF_RECORDS["loss"](records)).get_yscale() == scale


def test_every_validation_set_has_its_curve_and_other_metrics_have_none() -> None:
    values = {"train/loss": 1.0, "val/loss": 1.0, "val/far/loss": 2.0, "val/accuracy": 0.5, "grad/norm": 3.0}
    axes = drawn(OF_RECORDS["loss"]([{"batch": 10, **values}]))
    assert set(lines(axes)) == {"train/loss", "val/loss", "val/far/loss"}


@pytest.mark.parametrize("loss", [0.0, -1.0, math.nan])
def test_a_loss_that_has_no_logarithm_is_drawn_on_a_linear_axis(loss: float) -> None:
    assert drawn(OF_RECORDS["loss"]([{"batch": 10, "train/loss": loss}])).get_yscale() == "linear"


def test_throughput_is_drawn_over_time(run: RunFolder) -> None:
    curves = lines(drawn(OF_RECORDS["throughput"](read_records(run))))
    assert list(curves) == ["trained, with repeats", "trained for the first time"]
    assert curves["trained, with repeats"] == ([1.0, 2.0, 3.0, 4.0, 5.0], [100.0] * 5)


def test_the_buffer_is_drawn_with_what_was_never_drawn(run: RunFolder) -> None:
    curves = lines(drawn(OF_RECORDS["buffer"](read_records(run))))
    assert curves["in the buffer"] == ([1.0, 2.0, 3.0, 4.0, 5.0], [50] * 5)
    assert max(curves["never drawn"][1]) == 20


def test_phases_are_stacked_with_the_longest_at_the_bottom(run: RunFolder) -> None:
    axes = drawn(figures.phases(read_records(run)))
    assert [area.get_label() for area in axes.collections] == ["step", "wait for data"]
    assert max(axes.collections[1].get_paths()[0].vertices[:, 1]) == pytest.approx(0.9)


def test_a_phase_that_a_log_point_does_not_have_took_no_time_there() -> None:
    records: list[dict[str, Any]] = [
        {"batch": 1, "wall_s": 1.0, "time/step": 0.5},
        {"batch": 2, "wall_s": 2.0, "time/step": 0.5, "time/validation": 0.4},
        {"batch": 2, "wall_s": 2.1, "val/loss": 1.0},
    ]
    axes = drawn(figures.phases(records))
    assert {point[0] for point in axes.collections[1].get_paths()[0].vertices} == {1.0, 2.0}


def test_the_shortest_of_many_phases_share_an_area() -> None:
    shares = {f"time/{name}": 0.01 * position for position, name in enumerate("abcdefghij")}
    axes = drawn(figures.phases([{"batch": batch, "wall_s": batch, **shares} for batch in (1, 2)]))
    assert [area.get_label() for area in axes.collections] == [*"jihgfed", "other phases"]
    assert max(axes.collections[-1].get_paths()[0].vertices[:, 1]) == pytest.approx(sum(shares.values()))


def bars(axes: Any) -> list[tuple[float, float, float]]:
    """Left end, width and height of each."""
    return [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches]


def test_the_seen_counts_are_bars_around_whole_numbers(run: RunFolder) -> None:
    axes = drawn(figures.draw_counts(read_histograms(run, "buffer/seen")))
    assert bars(axes) == [(-0.5, 1, 1), (0.5, 1, 2), (1.5, 1, 1), (14.5, 1, 1)]


def test_the_seen_counts_are_not_those_of_buffers_that_run_empty() -> None:
    full, half, empty = ([[0.0, 0.0, num]] for num in (100, 60, 3))
    histograms = [{"batch": batch, "intervals": it} for batch, it in ((10, full), (20, half), (30, empty))]
    assert drawn(figures.draw_counts(histograms)).get_title() == "after batch 20"


def test_the_samples_of_an_interval_are_spread_over_its_whole_numbers() -> None:
    intervals = Histogram.of([11, 11, 11, 12, 13, 13]).intervals()
    axes = drawn(figures.draw_counts([{"batch": 1, "intervals": intervals}]))
    assert bars(axes) == [(10.5, 2, 2), (12.5, 1, 2)]


def test_the_pictures_of_a_run_are_written(run: RunFolder, tmp_path: Path) -> None:
    files = plot(run, tmp_path / "figures", ["png", "pdf"])
    assert sorted(file.name for file in files) == sorted(f"{name}.{end}" for name in PICTURES for end in ("png", "pdf"))
    for file in files:
        assert file.read_bytes()[:4] == (b"\x89PNG" if file.suffix == ".png" else b"%PDF")


def test_a_picture_with_nothing_to_show_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"batch": 10, "wall_s": 1.0, "train/loss": 0.5}\n')
    assert [file.name for file in plot(RunFolder(tmp_path), tmp_path / "figures")] == ["loss.png"]


def test_a_folder_that_cannot_be_made_is_named(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="the pictures cannot be written to"):
        plot(run, run.metrics / "metrics.jsonl" / "figures")
