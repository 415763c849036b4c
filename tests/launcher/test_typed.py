"""What `typed` takes for a dataclass of the right types."""

from dataclasses import dataclass
from typing import Any

import pytest

from stream_server.launcher.typed import typed


@dataclass(frozen=True, kw_only=True)
class Point:
    number: int
    size: float = 0.0
    name: str | None = None
    by_name: dict[str, float] | None = None
    pair: tuple[int, ...] = ()
    rest: Any = None


def test_values_of_the_right_types_are_taken_as_they_are() -> None:
    values = {"number": 1, "size": 2, "name": None, "by_name": {"x": 1.5}, "pair": (1, 2), "rest": [{}]}
    assert typed(Point, values) == Point(**values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": "1"},
        {"number": True},
        {"number": 1.0},
        {"number": None},
        {"size": False},
        {"name": 3},
        {"by_name": {"x": "y"}},
        {"by_name": []},
        {"pair": (1, "2")},
        {"pair": [1, 2]},
        {"unknown": 1},
    ],
)
def test_a_value_of_another_type_and_an_unknown_name_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        typed(Point, {"number": 1, **wrong})


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(TypeError, match="number"):
        typed(Point, {})
