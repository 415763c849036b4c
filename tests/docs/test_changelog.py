"""The changelog stays one that a user reads."""

import re
from pathlib import Path

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def test_each_point_of_the_changelog_takes_two_lines_at_most() -> None:
    text = CHANGELOG.read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    points = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert [point for point in points if point.count("\n") > 1] == []
