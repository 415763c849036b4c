"""Fencing: what an older attempt of a simulation can still do is nothing."""

import pytest

from stream_server.messages.client import Refusal
from stream_server.server.intake.attempts import why_stale
from tests.fakes.intakes import block, data, make, opened, opening, send


def test_a_late_notice_of_an_older_attempt_changes_nothing() -> None:
    intake = make()
    intake.begin_attempt(0, 1)
    client = opened(intake, opening(block(), attempt=1))
    intake.begin_attempt(0, 0)
    assert send(intake, client, data(client, 0)) == 1
    attempt = intake.attempt(0)
    assert attempt is not None
    assert attempt.attempt == 1


def test_an_older_attempt_has_no_credit_for_a_series_once_a_new_one_has_begun() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    assert intake.assembly.credit_from(client, 0) == intake.state.credit
    intake.begin_attempt(0, 1)
    assert intake.assembly.credit_from(client, 0) == 0
    assert isinstance(send(intake, client, data(client, 0)), Refusal)


def test_an_attempt_that_does_not_run_never_runs_again() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    intake.end_attempt(0, 0)
    intake.begin_attempt(0, 0)
    assert isinstance(send(intake, client, data(client, 0)), Refusal)
    # Rank 0 may stop a simulation that it had seen end, and be told of the end once more.
    intake.end_simulation(0, "given_up")
    intake.end_attempt(0, 0)
    intake.begin_attempt(0, 1)
    assert isinstance(send(intake, client, data(client, 0)), Refusal)


@pytest.mark.parametrize(
    ("attempt", "end_state", "text"),
    [
        (2, "given_up", "simulation 7 is given up already"),
        (2, "", "attempt 2 of simulation 7 is over"),
        (1, "", "attempt 1 of simulation 7 is not the current one, which is attempt 2"),
    ],
)
def test_a_client_that_comes_too_late_is_told_why_nothing_is_accepted(attempt: int, end_state: str, text: str) -> None:
    assert why_stale(7, attempt, current=2, end_state=end_state) == text
