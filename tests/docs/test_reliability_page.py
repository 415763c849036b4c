"""docs/reliability.md has a row for each promise, names tests that are there, and tells measured figures."""

import re
from pathlib import Path

import pytest

from tests.figures import BEGIN, END, PAGE, recorded, table
from tests.mutants import scores
from tests.support.unmarked import unmarked

ROOT = Path(__file__).parents[2]
TEXT = PAGE.read_text()
ROWS = {row.split("|")[1].strip(): row for row in TEXT.splitlines() if re.match(r"\| G\d+ ", row)}
NAME = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
NAMED = sorted(set(NAME.findall(TEXT)))
PROMISES = [f"G{number}" for number in range(1, 29)]


def test_each_promise_has_one_row() -> None:
    assert list(ROWS) == PROMISES


@pytest.mark.parametrize("promise", PROMISES)
def test_a_row_names_a_test_or_says_that_it_is_not_shown(promise: str) -> None:
    assert "`tests/" in ROWS[promise] or "not shown" in ROWS[promise]


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_what_the_page_names_is_there(path: str, test: str) -> None:
    if test:
        assert f"def {test}(" in (ROOT / path).read_text()
    else:
        assert (ROOT / path).exists()


@pytest.mark.parametrize("promise", PROMISES)
def test_a_row_names_a_test_that_make_test_runs(promise: str) -> None:
    assert any(is_run_by_make_test(path, test) for path, test in NAME.findall(ROWS[promise]))


def is_run_by_make_test(path: str, test: str) -> bool:
    """Whether the file has this test, or any test if none is named, without the marker `full`."""
    run = unmarked(ROOT / path)
    return test in run if test else any(name.startswith("test_") for name in run)


def test_the_figures_are_those_that_the_campaigns_have_recorded() -> None:
    told = TEXT.partition(BEGIN)[2].partition(END)[0]
    assert told == table(recorded())


def test_the_scores_of_rooms_are_those_that_the_mutants_have_recorded() -> None:
    told = TEXT.partition(scores.BEGIN)[2].partition(scores.END)[0]
    assert told == scores.table(recorded()[scores.FIGURE]["rooms"])


def test_no_room_passes_over_more_than_a_fifth_of_the_mutants_that_matter() -> None:
    rooms = recorded()[scores.FIGURE]["rooms"]
    assert [room for room, counts in rooms.items() if scores.score(counts) < scores.LEAST] == []
