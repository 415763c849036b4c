"""What those are told who come too late."""

import pytest

from stream_server.server.stale import stale


@pytest.mark.parametrize(
    ("attempt", "state", "text"),
    [
        (2, "given_up", "simulation 7 is given up already"),
        (2, "", "attempt 2 of simulation 7 is over"),
        (1, "", "attempt 1 of simulation 7 is not the current one, which is attempt 2"),
    ],
)
def test_the_text_says_why_nothing_is_taken(attempt: int, state: str, text: str) -> None:
    assert stale(7, attempt, current=2, state=state) == text
