"""How a study ends."""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import EXIT_SAVED
from stream_server.machine import processes
from stream_server.server.commands.cli import main
from stream_server.server.intake.account import SimulationEnd
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.run.start import StartOptions
from stream_server.server.study import closing, study
from stream_server.server.study.closing import judged, outcome_of, write_and_show
from stream_server.server.study.report import Outcome
from tests.support.runs import NUMPY_STUDY


def stopped(agreed: StopReason | None, text: str = "") -> StopRequests:
    stops = StopRequests()
    stops.agreed, stops.text = agreed, text
    return stops


@pytest.mark.parametrize(
    ("agreed", "exit_code", "reason"),
    [
        (None, 0, "finished"),
        (StopReason.UNEVEN, 0, "finished"),
        (StopReason.EARLY_STOP, 0, "early_stop"),
        (StopReason.MAX_BATCHES, 0, "max_batches"),
        (StopReason.MAX_S, 0, "max_s"),
        (StopReason.SAVED, 75, "saved"),
    ],
)
def test_each_end_has_its_exit_code_and_its_word(agreed: StopReason | None, exit_code: int, reason: str) -> None:
    assert outcome_of(stopped(agreed, "why"), is_saved=True) == Outcome(
        exit_code=exit_code, reason=reason, message="why"
    )


def test_writers_are_told_of_a_failure_after_which_the_ranks_do_not_come_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = {"warnings": [], "exit_reason": "failed", "exit_code": 3, "message": "rank 1: why"}
    monkeypatch.setattr(closing, "build_report", lambda *_: report)
    for name in ("write_report", "show_summary"):
        monkeypatch.setattr(closing, name, lambda *_, **__: None)
    told: list[Any] = []
    failed: Any = SimpleNamespace(
        continuation=SimpleNamespace(is_outdated=lambda: False),
        folder=SimpleNamespace(places=lambda **_: [], report=None),
        is_online=True,
        is_set_up=False,
        metrics=SimpleNamespace(end=lambda *said: told.append(said)),
        stops=SimpleNamespace(hands_over=False),
    )
    assert write_and_show(failed, Outcome(exit_code=3, reason="failed", message="rank 1: why"), []) == 3
    assert told == [("failed", "rank 1: why")]


@pytest.mark.parametrize(
    ("states", "held_out", "exit_code"),
    [
        (["given_up", "given_up"], [], 4),
        (["given_up", "invalid"], ["finished"], 4),
        (["given_up", "finished"], [], 0),
        (["given_up", "stopped_early"], [], 0),
        (["given_up", "stopped"], [], 0),
        ([], ["given_up"], 0),
    ],
)
def test_a_study_of_which_every_simulation_to_train_on_failed_has_failed(
    states: list[str], held_out: list[str], exit_code: int
) -> None:
    ends = [SimulationEnd(state=it, num_steps=1) for it in states]
    ends += [SimulationEnd(state=it, num_steps=1, held_out=True) for it in held_out]
    simulations: Any = SimpleNamespace(ends=dict(enumerate(ends)))
    outcome = judged(Outcome(exit_code=0, reason="finished", message=""), simulations)
    assert outcome.exit_code == exit_code
    assert ("2 simulations to train on, and all have failed" in outcome.message) == (exit_code != 0)
    stopped_otherwise = Outcome(exit_code=75, reason="saved", message="saved")
    assert judged(stopped_otherwise, simulations) is stopped_otherwise


@pytest.mark.parametrize("agreed", [None, *StopReason])
def test_without_its_last_checkpoint_no_end_is_a_success(agreed: StopReason | None) -> None:
    outcome = outcome_of(stopped(agreed), is_saved=False)
    assert (outcome.exit_code, outcome.reason) == (5, "failed")
    assert "the last checkpoint could not be committed" in outcome.message


def test_the_exit_code_of_a_saved_study_is_the_one_that_asks_to_be_run_again() -> None:
    """EX_TEMPFAIL of sysexits.h."""
    assert EXIT_SAVED == 75


@pytest.mark.parametrize(
    ("time_limit_s", "left_s"),
    [(4.0, 1.0), (60.0, 15.0), (480.0, 120.0), (3600.0, 120.0), (86400.0, 120.0)],
)
def test_a_quarter_of_the_time_limit_is_left_for_the_end_and_no_more_than_two_minutes(
    time_limit_s: float, left_s: float
) -> None:
    assert StartOptions(time_limit_s=time_limit_s, began_s=1000.0).leave_at_s == 1000.0 + time_limit_s - left_s


def test_a_time_limit_counts_from_the_start_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[StartOptions] = []
    monkeypatch.setattr(processes, "age_s", lambda: 13.0)
    monkeypatch.setattr(study, "run_study", lambda config, start: starts.append(start) or 0)
    before = time.monotonic()
    assert main(["--config", str(NUMPY_STUDY), "--time-limit", "0:01:00"]) == 0
    assert before + 60.0 - 13.0 <= starts[0].leave_at_s + 15.0 <= time.monotonic() + 60.0 - 13.0


def test_without_a_time_limit_nobody_leaves() -> None:
    assert StartOptions().leave_at_s == math.inf
