"""The page on the protocol has the table by which a server rank answers."""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from stream_server.messages.client import Reason
from stream_server.server.reception.dispatcher import ANSWERS, ANSWERS_WHEN_LEAVING, KINDS, OTHERS, Response

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"


def cell(answer: Response | Reason | None) -> str:
    if answer is None:
        return "as above"
    return answer.name if isinstance(answer, Reason) else answer.value


def row(state: Enum | str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([state.value if isinstance(state, Enum) else state, *cells])} |"


def drawn() -> str:
    """The table, as it is on the page."""
    columns = range(OTHERS + 1)
    kinds = [", ".join(kind.__name__ for kind, it in KINDS.items() if it == column) for column in columns]
    return "\n".join(
        [
            row("", [it or "any other" for it in kinds]),
            "|---" * (len(kinds) + 1) + "|",
            *(row(state, map(cell, answers)) for state, answers in ANSWERS.items()),
            row("any, while the server leaves", (cell(ANSWERS_WHEN_LEAVING.get(it)) for it in columns)),
        ]
    )


def test_the_answers_of_a_server_rank_are_on_the_page() -> None:
    assert drawn() in PAGE.read_text(), f"the table is now:\n{drawn()}"
