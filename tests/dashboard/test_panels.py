"""The panels of the page, without a browser: what is to be seen of them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from bokeh.document import Document

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import RunStatus
from stream_server.analysis.simulations import SimulationSummary
from stream_server.analysis.timeline import AttemptSpan
from stream_server.analysis.validations import RecordedRollouts, RecordedValidation, RenderedSample
from stream_server.dashboard import texts
from stream_server.dashboard.page import Page, first_shown
from stream_server.dashboard.watch import RunSnapshot, Watch

SIMULATIONS = [
    SimulationSummary(
        simulation=0, parameters={"x": 1.0}, state="running", attempts=1, seconds=1.0, received=3, reason=""
    )
]
ATTEMPTS = [AttemptSpan(simulation=0, attempt=0, started_s=1.0)]


class Known:
    """A watch over one run of which this is known."""

    def __init__(self, folder: Path, **known: Any) -> None:
        self.folder = folder
        self.orders: list[tuple[Path, bool]] = []
        status = RunStatus(run=RunFolder(folder / "heat"), state="running", detail="")
        self._known = RunSnapshot(at_s=2.0, status=status, **known)

    def runs(self) -> Mapping[Path, RunStatus]:
        return {self._known.status.run.path: self._known.status}

    def unread_folders(self) -> str:
        return ""

    def snapshot(self, path: Path) -> RunSnapshot:
        return self._known

    def choose(self, page: object, paths: frozenset[Path]) -> None:
        """Nothing is read."""

    def stop(self, path: Path, *, finish: bool) -> None:
        self.orders.append((path, finish))


def page(folder: Path, **known: Any) -> Page:
    opened = Page(Document(), cast(Watch, Known(folder, **known)))
    opened.open()
    return opened


def logged(*losses: float) -> list[dict[str, float]]:
    values = {"speed/samples_per_s": 1.0, "buffer/population": 2.0, "simulations/running": 1.0}
    return [
        {"batch": batch, "sample": batch, "wall_s": float(batch), "train/loss": loss, **values}
        for batch, loss in enumerate(losses, 1)
    ]


def shown(opened: Page) -> list[str]:
    panels = {
        "losses": opened._loss_panel,
        "no curves": opened._no_curves,
        "rates": opened._rates.figures[0],
        "buffer": opened._buffers.figures[0],
        "running": opened._running.figures[0],
        "timeline": opened._timeline_panel,
        "phases": opened._phase_panel,
        "space": opened._space_panel,
    }
    return [name for name, panel in panels.items() if panel.visible]


def test_nothing_that_is_empty_is_shown(tmp_path: Path) -> None:
    assert shown(page(tmp_path)) == ["no curves"]
    before_training = page(tmp_path, simulations=SIMULATIONS, attempts=ATTEMPTS)
    assert shown(before_training) == ["no curves", "timeline", "space"]
    ranks = {0: {"batch": 1, "time/step": 1.0}}
    training = page(tmp_path, simulations=SIMULATIONS, attempts=ATTEMPTS, records=logged(1.0, 0.5), ranks=ranks)
    assert shown(training) == ["losses", "rates", "buffer", "running", "timeline", "phases", "space"]


@pytest.mark.parametrize(
    ("losses", "is_log"), [((1.0, 0.5), False), ((1.0, 0.01), True), ((1.0, -1.0, 0.001), False), ((1.0,), False)]
)
def test_less_than_two_decades_are_on_a_linear_axis(losses: tuple[float, ...], is_log: bool, tmp_path: Path) -> None:
    opened = page(tmp_path, records=logged(*losses))
    assert [it.visible for it in opened._losses.figures] == [is_log, not is_log]
    opened._scale.active = 1
    assert [it.visible for it in opened._losses.figures] == [True, False]
    opened._scale.active = 2
    assert [it.visible for it in opened._losses.figures] == [False, True]


def test_lines_and_points_tell_their_values_where_the_pointer_is(tmp_path: Path) -> None:
    opened = page(tmp_path)
    charts = (opened._losses, opened._rollouts, opened._rates, opened._buffers, opened._running)
    assert all(each.hover for chart in charts for each in chart.figures)
    assert opened._space.figure.hover


def test_the_axes_that_were_chosen_stay_while_the_run_goes_on(tmp_path: Path) -> None:
    opened = page(tmp_path, simulations=SIMULATIONS)
    assert (opened._x.value, opened._y.value) == ("x", "id")
    opened._x.value, opened._y.value = "id", "x"
    opened.update()
    assert (opened._x.value, opened._y.value) == ("id", "x")


@pytest.mark.parametrize("finish", [False, True])
def test_a_study_is_told_what_was_asked_once_that_is_confirmed(tmp_path: Path, finish: bool) -> None:
    watch = Known(tmp_path)
    opened = Page(Document(), cast(Watch, watch))
    opened.open()
    opened._ask(finish=finish)
    assert ("Start no simulation any more" in opened._question.text) == finish
    assert opened._question.visible
    opened._withdraw()
    opened._confirm()
    assert watch.orders == []
    opened._ask(finish=finish)
    opened._confirm()
    assert watch.orders == [(tmp_path / "heat", finish)]
    assert not opened._question.visible


def validation(samples: list[RenderedSample], rollouts: RecordedRollouts | None = None) -> RecordedValidation:
    none = np.zeros(0)
    return RecordedValidation(
        batch=10,
        values={},
        units={"level": "m"},
        simulations=none,
        time_steps=none,
        errors=none,
        samples=tuple(samples),
        is_whole=True,
        rollouts=rollouts,
    )


@pytest.mark.parametrize(("errors", "is_log"), [([1.0, 2.0], False), ([1.0, 200.0], True)])
def test_forecasts_that_get_hardly_worse_are_on_a_linear_axis(
    errors: list[float], is_log: bool, tmp_path: Path
) -> None:
    rollouts = RecordedRollouts(simulations=np.array([0]), lead_times=np.array([1, 2]), mse={"u": np.array([errors])})
    opened = page(tmp_path, validation=validation([], rollouts))
    assert [it.visible for it in opened._rollouts.figures] == [is_log, not is_log]


def rendered(simulation: int, truth: Any, prediction: Any) -> RenderedSample:
    return RenderedSample(
        simulation=simulation,
        time_step=3,
        parameters={"x": 1.0},
        shown={"level": (np.asarray(truth), np.asarray(prediction))},
    )


def test_predictions_of_one_value_are_told_in_numbers(tmp_path: Path) -> None:
    samples = [rendered(0, [2.0], [1.5]), rendered(1, [0.0], [0.25])]
    opened = page(tmp_path, validation=validation(samples))
    assert opened._prediction_row.visible
    assert opened._single_values.visible
    assert not opened._prediction_charts.visible
    assert "level (m)" in opened._predictions_title.text
    for told in (
        "<th>simulation 0, time step 3</th><td>truth 2, prediction 1.5, off by 25.00%</td>",
        "<th>simulation 1, time step 3</th><td>truth 0, prediction 0.25</td>",
    ):
        assert told in opened._single_values.text
    of_a_field = page(tmp_path, validation=validation([rendered(0, [1.0, 2.0], [1.0, 2.0])]))
    assert (of_a_field._prediction_charts.visible, of_a_field._single_values.visible) == (True, False)
    assert of_a_field._sample.options == ["simulation 0, time step 3"]
    assert (of_a_field._sample.value, of_a_field._shown.value) == ("simulation 0, time step 3", "level")


def test_the_run_that_was_started_last_is_shown_first_and_one_that_runs_before_it(tmp_path: Path) -> None:
    runs = {}
    for name, state, started_s in (
        ("a", "finished", 20),
        ("b", "finished", 30),
        ("c", "running", 10),
        ("d", "failed", 0),
    ):
        run = tmp_path / name
        run.mkdir()
        if started_s:
            (run / "study.json").touch()
            os.utime(run / "study.json", (started_s, started_s))
        runs[run] = RunStatus(run=RunFolder(run), state=state, detail="")
    assert first_shown(runs) == tmp_path / "c"
    del runs[tmp_path / "c"]
    assert first_shown(runs) == tmp_path / "b"


def test_text_of_strangers_is_no_html() -> None:
    assert "&lt;script&gt;" in texts.table([("run", "<script>")])
    assert "&lt;b&gt;" in texts.legend({"<b>": "#000000"})
