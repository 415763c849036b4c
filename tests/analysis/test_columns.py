"""The columns of the charts, from values that are written down here."""

import math
from typing import Any

import numpy as np
import pytest

from stream_server.analysis import columns
from stream_server.analysis.run_status import account_rows
from stream_server.analysis.simulations import SimulationSummary
from stream_server.analysis.timeline import AttemptSpan
from stream_server.analysis.validations import RecordedRollouts, RecordedValidation


def record(batch: int, **values: float) -> dict[str, Any]:
    return {"batch": batch, "sample": 10 * batch, "wall_s": batch / 2} | {
        name.replace("_of_", "/"): value for name, value in values.items()
    }


def test_losses_are_those_of_training_and_of_each_validation_set_over_the_axis_of_choice() -> None:
    records = [record(1, train_of_loss=5.0), record(2, train_of_loss=math.nan), record(2, val_of_a_of_loss=3.0)]
    curves = columns.losses(records, "sample")
    assert list(curves) == ["train/loss", "val/a/loss"]
    assert curves["train/loss"]["x"] == [10, 20]
    assert math.isnan(curves["train/loss"]["y"][1])
    assert curves["val/a/loss"] == {"x": [20], "y": [3.0]}


def test_a_long_curve_is_thinned_so_that_what_was_sent_stays_while_it_grows() -> None:
    records = [record(batch, train_of_loss=1.0) for batch in range(3 * columns.MAX_POINTS)]
    before = columns.thin(columns.losses(records))["train/loss"]["x"]
    longer = [*records, record(10**6, train_of_loss=1.0)]
    after = columns.thin(columns.losses(longer))["train/loss"]["x"]
    assert len(before) <= columns.MAX_POINTS
    assert before == list(range(0, 3 * columns.MAX_POINTS, 4))
    assert after[: len(before)] == before


def test_forecasts_are_drawn_by_lead_time_as_far_as_they_are_finite() -> None:
    rollouts = RecordedRollouts(
        simulations=np.array([0, 1]),
        lead_times=np.array([1, 2, 3]),
        mse={"u": np.array([[1.0, 4.0, np.inf], [3.0, np.nan, np.nan]])},
    )
    validation = RecordedValidation(
        batch=10,
        values={},
        units={},
        simulations=np.zeros(0),
        time_steps=np.zeros(0),
        errors=np.zeros(0),
        samples=(),
        is_whole=True,
        rollouts=rollouts,
    )
    assert columns.rollouts(validation) == {"u": {"x": [1, 2], "y": [2.0, 4.0]}}
    assert columns.rollouts(None) == {}


def test_rates_are_drawn_new_and_received_samples_and_what_is_not_known_is_left_out() -> None:
    points = [
        record(0, speed_of_samples_per_s=40.0),
        record(3, speed_of_received_per_s=30.0, simulations_of_running=2),
        record(4, speed_of_samples_per_s=60.0),
    ]
    assert columns.running_simulations(points) == {"running": {"x": [1.5], "y": [2]}}
    assert columns.running_simulations([]) == {}
    assert columns.rates(points) == {
        "trained, with repeats": {"x": [0, 2], "y": [40.0, 60.0]},
        "trained for the first time": {"x": [2], "y": [20.0]},
        "received": {"x": [1.5], "y": [30.0]},
    }
    assert columns.rates([]) == {}


def test_a_bar_goes_from_the_begin_of_an_attempt_to_its_end_or_to_now() -> None:
    attempts = [
        AttemptSpan(simulation=0, attempt=0, state="failed", started_s=100.0, ended_s=104.0, reason="exit code 1"),
        AttemptSpan(simulation=0, attempt=1, state="running", started_s=105.0),
        AttemptSpan(simulation=7, attempt=0, state="running"),
    ]
    bars = columns.timeline(attempts, now_s=110.0)
    assert bars["left"] == [0, 5]
    assert bars["right"] == [4, 10]
    assert bars["colour"] == [columns.ATTEMPT_COLOURS["failed"], columns.ATTEMPT_COLOURS["running"]]


def test_the_phases_of_a_rank_lie_side_by_side_in_the_same_order_and_colours_on_all_ranks() -> None:
    ranks = {
        0: {"batch": 1, "time/step": 0.6, "time/wait_for_data": 0.4},
        1: {"batch": 1, "time/wait_for_data": 0.5, "time/step": 0.25},
    }
    bars = columns.phases(ranks)
    assert list(zip(bars["rank"], bars["phase"], bars["left"], bars["right"], strict=True)) == [
        (0, "step", 0, 0.6),
        (0, "wait for data", 0.6, 1.0),
        (1, "step", 0, 0.25),
        (1, "wait for data", 0.25, 0.75),
    ]
    assert bars["colour"][:2] == bars["colour"][2:] == list(columns.phase_colours(ranks).values())


def test_simulations_are_placed_at_two_of_their_parameters_or_at_their_ids() -> None:
    simulations = [
        SimulationSummary(
            simulation=3, parameters={"x": 1.5}, state="given_up", attempts=2, seconds=None, received=None, reason=""
        )
    ]
    assert columns.parameter_names(simulations) == ["x", "id"]
    points = columns.parameter_points(simulations, {}, "x", "id")
    assert (points["x"], points["y"], points["state"]) == ([1.5], [3], ["given up"])
    assert columns.parameter_names([]) == ["id"]


def test_the_account_adds_up_reasons_and_says_what_is_not_balanced() -> None:
    report = {
        "balanced": False,
        "unbalanced": ["one sample too many"],
        "samples": {"expected": 1200, "rejected": {"late": 2, "double": 3}, "recorded": 1195},
    }
    assert account_rows(report) == [
        ("expected", "1,200"),
        ("rejected", "5"),
        ("recorded", "1,195"),
        ("account", "NOT BALANCED"),
        ("", "one sample too many"),
    ]
    assert account_rows({}) == []


@pytest.mark.parametrize(
    ("exit_code", "told"), [(0, [("account", "balanced")]), (75, [("account", "balanced")]), (3, [])]
)
def test_only_a_run_that_did_not_fail_is_called_balanced(exit_code: int, told: list[tuple[str, str]]) -> None:
    report = {"balanced": True, "exit_code": exit_code, "samples": {"expected": 1200}}
    assert account_rows(report) == [("expected", "1,200"), *told]
