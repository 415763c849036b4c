"""The values that `typed` accepts for a dataclass, and the JSON that `plain` makes."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import pytest

from stream_server.storage.typed import Length, OneOf, Range, plain, typed


class State(Enum):
    READY = 1


@dataclass(frozen=True, kw_only=True)
class Inner:
    text: Annotated[str, Length(1, 3)] = "a"
    num: Annotated[int, Range(1, 3)] = 1
    choice: Annotated[str, OneOf(("x", "y"))] = "x"

    def problem(self) -> str | None:
        return "it is bad" if self.text == "bad" else None


@dataclass(frozen=True, kw_only=True)
class Point:
    number: int
    size: float = 0.0
    name: str | None = None
    by_name: dict[str, float] | None = None
    pair: tuple[int, ...] = ()
    rest: Any = None
    state: State | None = None
    content: bytes = b""
    by_number: dict[int, str] | None = None
    inner: Inner | None = None


def test_values_of_the_right_types_are_taken_as_they_are() -> None:
    values = {"number": 1, "size": 2.5, "name": None, "by_name": {"x": 1.5}, "pair": (1, 2), "rest": [{}]}
    assert typed(Point, values) == Point(**values)


def test_a_dataclass_comes_back_from_its_json() -> None:
    point = Point(
        number=1,
        by_name={"x": 2.0},
        pair=(1, 2),
        state=State.READY,
        content=b"\x00\xff",
        by_number={3: "a"},
        inner=Inner(text="é", num=3, choice="y"),
    )
    assert typed(Point, json.loads(json.dumps(plain(point)))) == point


def test_a_whole_number_becomes_a_float_where_one_is_declared() -> None:
    assert type(typed(Point, {"number": 1, "size": 2}).size) is float


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
        {"pair": {"0": 1}},
        {"size": float("inf")},
        {"size": 10**400},
        {"state": "Ready"},
        {"content": "0"},
        {"content": "AB"},
        {"content": "0 1"},
        {"by_number": {"x": "a"}},
        {"by_number": {"01": "a"}},
        {"inner": {"x": 1}},
        {"inner": {"text": "too long"}},
        {"inner": {"text": "\0"}},
        {"inner": {"text": "\ud800"}},
        {"inner": {"num": 4}},
        {"inner": {"text": "bad"}},
        {"unknown": 1},
    ],
)
def test_a_value_of_another_type_and_an_unknown_name_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        typed(Point, {"number": 1, **wrong})


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(TypeError, match="number"):
        typed(Point, {})
