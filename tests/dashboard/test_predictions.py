"""The prediction of a held-out sample beside its truth: as a line or a picture, whatever its shape."""

from typing import Any

import numpy as np
import pytest

from stream_server.analysis.columns import log_colours, log_range
from stream_server.dashboard.predictions import MAX_SIDE, PredictionCharts, finite_range, flat


@pytest.mark.parametrize(
    ("shape", "flattened"),
    [((), (1,)), ((7,), (7,)), ((3, 4), (3, 4)), ((5, 3, 4), (3, 4)), ((2, 5, 3, 4), (3, 4)), ((600, 2), (200, 2))],
)
def test_an_array_of_any_shape_becomes_a_line_or_a_picture(shape: tuple[int, ...], flattened: tuple[int, ...]) -> None:
    shown = flat(np.zeros(shape))
    assert (shown.shape, shown.dtype) == (flattened, np.float32)
    assert max(flat(np.zeros((1000, 1000))).shape) <= MAX_SIDE
    assert flat(np.array([3 + 4j])).tolist() == [5]


@pytest.mark.parametrize("truth", [np.zeros((2, 3)), np.zeros(4), np.array(1.0), np.full((2, 2), np.nan)])
def test_truth_prediction_and_difference_share_what_can_be_compared(truth: Any) -> None:
    charts = PredictionCharts()
    charts.show(truth, truth + 2, name="u", unit="K")
    is_line = np.ndim(truth) < 2
    shown = [(line if is_line else image).data for line, image in zip(charts._lines, charts._images, strict=True)]
    values = [data["y"] if is_line else data["image"][0] for data in shown]
    assert np.array_equal(values[2], flat(truth + 2) - flat(truth), equal_nan=True)
    assert charts._mappers[0] is charts._mappers[1]
    assert charts.figures[0].x_range is charts.figures[1].x_range
    assert charts.figures[0].y_range is charts.figures[1].y_range
    assert charts._mappers[2].low == -charts._mappers[2].high < 0


def test_the_difference_tells_its_relative_error() -> None:
    charts = PredictionCharts()
    charts.show(np.full((2, 2), 4.0), np.full((2, 2), 5.0), name="u", unit="")
    assert charts.figures[2].title.text == "Difference, relative error 25.00%"
    charts.show(np.zeros((2, 2)), np.ones((2, 2)), name="u", unit="")
    assert charts.figures[2].title.text == "Difference"


def test_a_range_has_an_extent_whatever_the_values() -> None:
    assert finite_range(np.array([1.0, np.inf, 3.0])) == (1, 3)
    assert finite_range(np.array([2.0, 2.0])) == (1.5, 2.5)
    assert finite_range(np.array([np.nan])) == (0, 1)
    assert log_range([0.0, 4.0]) == (2, 8)
    assert log_range([]) == (0.5, 2)


def test_errors_get_their_colours_on_a_logarithmic_scale() -> None:
    assert log_colours([1.0, 10.0, 100.0, 0.0], "abc") == ["a", "b", "c", "a"]
