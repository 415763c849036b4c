"""The figures of samples and simulations, and the page that has all of them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.analysis import plot
from stream_server.analysis.simulations import SimulationSummary
from stream_server.analysis.validations import RecordedRollouts, RecordedValidation, RenderedSample, relative_error
from stream_server.commands.cli import main
from tests.analysis.logged_run import log_run

pytestmark = pytest.mark.slow


def validation(truth: Any, units: dict[str, str] | None = None) -> RecordedValidation:
    shown = {"u": (truth, truth + 1)}
    return RecordedValidation(
        batch=10,
        values={"loss": 1.0},
        units=units or {},
        simulations=np.array([0, 0, 1, 1]),
        time_steps=np.array([0, 1, 0, 1]),
        errors=np.array([1.0, 2.0, 3.0, 4.0]),
        samples=tuple(RenderedSample(simulation=i, time_step=5, parameters={}, shown=shown) for i in range(2)),
        is_whole=True,
    )


def simulations(num_parameters: int) -> list[SimulationSummary]:
    return [
        SimulationSummary(
            simulation=number,
            parameters={f"p{i}": float(number + i) for i in range(num_parameters)},
            state="given_up" if number == 2 else "finished",
            attempts=1,
            seconds=None,
            received=None,
            reason="",
            error=0.5 if number == 0 else None,
        )
        for number in range(3)
    ]


@pytest.mark.parametrize("shape", [(4, 5), (6, 4, 5), (1, 4, 5)])
def test_a_field_of_several_dimensions_is_shown_as_truth_prediction_and_difference(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=float).reshape(shape)
    figure = plot.predictions(validation(values))["u"]
    truth, prediction, difference = (axes.images[0] for axes in figure.axes[:3])
    planes = values.reshape(-1, 4, 5)
    assert np.array_equal(truth.get_array(), planes[len(planes) // 2])
    assert truth.get_clim() == prediction.get_clim()
    assert np.all(difference.get_array() == 1)
    assert "simulation 0\ntime step 5" in [axes.get_ylabel() for axes in figure.axes]


def test_the_relative_error_of_a_sample_is_below_its_difference() -> None:
    figure = plot.predictions(validation(np.full((4, 5), 8.0)))["u"]
    assert [axes.get_xlabel() for axes in figure.axes[:3]] == ["", "", "relative error 12.50%"]


def test_a_relative_error_is_that_of_finite_values_and_needs_a_truth_that_is_not_zero() -> None:
    assert relative_error(np.array([3.0, 4.0, np.nan]), np.array([3.0, 5.0, 9.0])) == pytest.approx(0.2)
    assert relative_error(np.array([3j, 4.0]), np.array([3j, 5.0])) == pytest.approx(0.2)
    assert relative_error(np.zeros(3), np.ones(3)) is None


def test_the_name_of_a_field_of_one_letter_stands_upright() -> None:
    figure = plot.predictions(validation(np.ones((4, 5))))["u"]
    labels = [axes.yaxis.label for axes in figure.axes if axes.get_ylabel() == "u"]
    assert [label.get_rotation() for label in labels] == [0, 0, 0, 0]


@pytest.mark.parametrize("truth", [np.arange(50.0), np.arange(3.0)])
def test_a_field_of_one_dimension_is_shown_as_lines_with_their_unit(truth: Any) -> None:
    figure = plot.predictions(validation(truth, {"u": "m/s"}))["u"]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert drawn == [truth.reshape(-1).tolist(), (truth + 1).reshape(-1).tolist()]
    assert figure.axes[1].get_ylabel() == "u (m/s)"


@pytest.mark.parametrize("truth", [np.array(2.0), np.array([2.0]), np.array([[2.0]])])
def test_samples_of_one_value_are_points_of_one_picture(truth: Any) -> None:
    figure = plot.predictions(validation(truth, {"u": "K"}))["u"]
    [axes] = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("truth: u (K)", "prediction")
    assert axes.get_lines()[-1].get_xydata().tolist() == [[2.0, 3.0]] * 2


def test_errors_are_drawn_by_simulation_and_by_time_step() -> None:
    figure = plot.errors(validation(np.zeros(3)))
    assert figure is not None
    assert [list(axes.get_lines()[0].get_ydata()) for axes in figure.axes] == [[1.5, 3.5], [2.0, 3.0]]


ROLLOUTS = RecordedRollouts(
    simulations=np.array([0, 1]),
    lead_times=np.array([2, 4, 6]),
    mse={"u": np.array([[1.0, 4.0, np.inf], [3.0, np.nan, np.nan]])},
)


def test_rollouts_are_drawn_by_lead_time_with_the_unit_as_far_as_they_are_finite() -> None:
    drawn = replace(validation(np.zeros(3), {"u": "m/s"}), rollouts=ROLLOUTS)
    [axes] = plot.rollouts(drawn)["u"].axes
    assert axes.lines[0].get_xydata().tolist() == [[2, 2.0], [4, 4.0]]
    assert (axes.get_ylabel(), axes.get_yscale()) == ("mean squared error of u ((m/s)²)", "linear")
    assert axes.get_title() == "not finite from lead time 6 on"
    assert plot.rollouts(validation(np.zeros(3))) == {}


@pytest.mark.parametrize(("num_parameters", "num_panels"), [(1, 1), (2, 1), (3, 3), (7, 10)])
def test_parameters_are_drawn_in_pairs_as_points(num_parameters: int, num_panels: int) -> None:
    figure = plot.coverage(simulations(num_parameters), {"p0": "K"})
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.get_lines()]
    assert len(panels) == num_panels
    assert [line.get_label() for line in panels[0].get_lines()] == ["finished (2)", "given up (1)"]
    assert {line.get_linestyle() for axes in panels for line in axes.get_lines()} == {"None"}
    assert "p0 (K)" in [axes.get_xlabel() for axes in figure.axes]


def test_the_page_has_every_picture_in_it_and_loads_nothing(tmp_path: Path) -> None:
    run = log_run(tmp_path / "heat")
    (run / "study.json").write_text(json.dumps({"study": {"name": "<heat>"}}))
    (run / "report.json").write_text(
        json.dumps({"exit_code": 0, "samples": {"expected": 3600}, "versions": {"numpy": "2.4"}})
    )
    assert main(["plot", str(run), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    sources = re.findall(r"(?:src|href)=\"([^\"]{0,30})", text)
    assert len(sources) == 5
    assert all(it.startswith("data:image/png;base64,") for it in sources)
    assert "<heat>" not in text
    assert "&lt;heat&gt;" in text
    assert "3,600" in text


def test_a_page_takes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = log_run(tmp_path / "heat")
    assert main(["plot", str(run), "--html", str(tmp_path / "page.html"), "--to", str(tmp_path)]) == 2
    assert "leave out --to" in capsys.readouterr().err
