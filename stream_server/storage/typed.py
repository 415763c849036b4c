"""Dataclasses as plain values of JSON, and back: what is read has the types and bounds that the attributes declare.

Attributes may be bool, int, float, str, bytes (hexadecimal digits), an enumeration (its members' names in lower
case), another dataclass, `T | None`, tuples and dictionaries of these, or `Any`. `Annotated[T, check]` adds a check: an
object such as `Range`, `Length` or `OneOf` with a method `problem`. A dataclass may have a method `problem`, too, for
what its attributes must keep together.
"""

import math
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import islice
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

SHOWN_CHARACTERS = 200
SHOWN_TEXTS = 20

T = TypeVar("T")
_SCALARS = frozenset({bool, int, float, str, type(None)})
# Makes a value of its type out of a plain one; the name is that of the attribute, for messages.
Reader = Callable[[Any, str], Any]


def shortened(text: str) -> str:
    """The text, cut off where it is long: for a message that repeats what came from outside."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def quoted(value: object) -> str:
    """A value as Python writes it, without control characters, and cut off where it is long."""
    return shortened(repr(value))


def listed(texts: Collection[str], between: str = ", ") -> str:
    """The first of several texts in a row, each cut off where it is long, and how many more there are."""
    first = between.join(map(shortened, islice(texts, SHOWN_TEXTS)))
    return first if len(texts) <= SHOWN_TEXTS else f"{first} and {len(texts) - SHOWN_TEXTS} more"


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two others, or one of them."""

    low: float
    high: float

    def problem(self, value: float) -> str | None:
        """The problem of a value; None if there is none."""
        if self.low <= value <= self.high:
            return None
        return f"must be from {self.low} to {self.high}, but is {quoted(value)}"


@dataclass(frozen=True, slots=True)
class Length:
    """The number of entries, or, of a text, the bytes of its UTF-8, in which it has no zero character."""

    low: int
    high: int

    def problem(self, value: Any) -> str | None:
        """The problem of a value; None if there is none."""
        if isinstance(value, str):
            try:
                num = len(value.encode())
            except UnicodeEncodeError:
                return "has half of a surrogate pair"
            if "\0" in value:
                return "has a zero character"
        else:
            num = len(value)
        return None if self.low <= num <= self.high else f"must have a length from {self.low} to {self.high}, not {num}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several values."""

    values: tuple[Any, ...]

    def problem(self, value: Any) -> str | None:
        """The problem of a value; None if there is none."""
        if value in self.values:
            return None
        return f"is {quoted(value)}, but must be one of {', '.join(map(repr, self.values))}"


def typed(cls: type[T], values: Any) -> T:
    """Make a `cls` from the result of `plain`, or from JSON of another origin.

    Raises:
        TypeError: an attribute is missing, unknown, of another type or out of its bounds.
    """
    kind: Any = cls
    made: T = _reader(kind)(values, cls.__name__)
    return made


def plain(value: Any) -> Any:
    """A value, such as a dataclass, as JSON has it: dictionaries, lists, texts, numbers, booleans and None."""
    kind: Any = type(value)
    return _writer(kind)(value)


@cache
def _writer(cls: type) -> Callable[[Any], Any]:
    """Makes values of this type plain."""
    if issubclass(cls, Enum):
        return lambda value: value.name.lower()
    if issubclass(cls, bytes):
        return lambda value: value.hex()
    if issubclass(cls, Mapping):
        return lambda value: {str(key): plain(item) for key, item in value.items()}
    if issubclass(cls, tuple | list):
        return lambda value: [plain(item) for item in value]
    if is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        # Most attributes are plain already: half of the time of a message was finding out, value by value.
        names = [(field.name, _is_scalar(hints[field.name])) for field in fields(cls)]
        return lambda value: {
            name: getattr(value, name) if is_scalar else plain(getattr(value, name)) for name, is_scalar in names
        }
    return lambda value: value


def _is_scalar(hint: Any) -> bool:
    """Whether every value of this type is a number, a text, a boolean or None."""
    return hint in _SCALARS or (get_origin(hint) in (UnionType, Union) and all(map(_is_scalar, get_args(hint))))


@cache
def _reader(expected: Any) -> Reader:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return _checked(_reader(arguments[0]), arguments[1:])
    if origin in (UnionType, Union):
        return _union([_reader(one) for one in arguments])
    if origin in (dict, Mapping):
        return _dictionary(*map(_reader, arguments))
    if origin is tuple:
        return _tuple(_reader(arguments[0]))
    if is_dataclass(expected):
        return _dataclass(expected)
    if isinstance(expected, type) and issubclass(expected, Enum):
        return _member({member.name.lower(): member for member in expected})
    return _SIMPLE[expected]


def _checked(read: Reader, checks: Sequence[Any]) -> Reader:
    *others, last = checks
    read = _checked(read, others) if others else read
    problem_of = last.problem

    def checked(value: Any, name: str) -> Any:
        made = read(value, name)
        if problem := problem_of(made):
            raise TypeError(f"{name!r} {problem}")
        return made

    return checked


def _union(readers: Sequence[Reader]) -> Reader:
    def one_of(value: Any, name: str) -> Any:
        for read in readers[:-1]:
            try:
                return read(value, name)
            except TypeError:
                continue
        return readers[-1](value, name)

    # The reader of the other type gives a better error than "it is not null".
    readers = sorted(readers, key=lambda read: read is not _SIMPLE[type(None)])
    return one_of


def _dictionary(of_key: Reader, of_item: Reader) -> Reader:
    def dictionary(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{name!r} must be an object")
        if of_key is _SIMPLE[int]:
            value = {_number(key): item for key, item in value.items()}
        return {of_key(key, name): of_item(item, name) for key, item in value.items()}

    return dictionary


def _number(key: Any) -> Any:
    """The number that a key of JSON, always a text, is for; the key itself if it is for none."""
    is_number = isinstance(key, str) and re.fullmatch("0|[1-9][0-9]{0,18}", key)
    return int(key) if is_number else key


def _tuple(of_item: Reader) -> Reader:
    def entries(value: Any, name: str) -> Any:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name!r} must be a list")
        return tuple([of_item(item, name) for item in value])

    return entries


def _dataclass(cls: Any) -> Reader:
    hints = typing.get_type_hints(cls, include_extras=True)
    readers = {field.name: _reader(hints[field.name]) for field in fields(cls)}
    required = [it.name for it in fields(cls) if it.default is MISSING and it.default_factory is MISSING]
    problem_of = getattr(cls, "problem", None)

    def made(value: Any, name: str) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise TypeError(f"{name!r} must be an object")
        if not value.keys() <= readers.keys():
            unknown = next(key for key in value if key not in readers)
            raise TypeError(f"{quoted(unknown)} is unknown")
        for key in required:
            if key not in value:
                raise TypeError(f"{key!r} is missing")
        made = cls(**{key: readers[key](item, key) for key, item in value.items()})
        if problem_of is not None and (problem := problem_of(made)):
            raise TypeError(problem)
        return made

    return made


def _member(members: Mapping[str, Enum]) -> Reader:
    def member(value: Any, name: str) -> Any:
        if not isinstance(value, str) or value not in members:
            raise TypeError(f"{name!r} must be one of {', '.join(members)}")
        return members[value]

    return member


def _exactly(cls: type, what: str) -> Reader:
    def exactly(value: Any, name: str) -> Any:
        # In JSON true is no number, though Python takes it for one.
        if type(value) is not cls:
            raise TypeError(f"{name!r} must be {what}")
        return value

    return exactly


def _float(value: Any, name: str) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise TypeError(f"{name!r} must be a finite number")


def _bytes(value: Any, name: str) -> bytes:
    try:
        made = bytes.fromhex(value)
        if made.hex() == value:
            return made
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name!r} must be bytes as pairs of the digits 0 to 9 and a to f")


def _anything(value: Any, name: str) -> Any:
    return value


_SIMPLE: dict[Any, Reader] = {
    bool: _exactly(bool, "true or false"),
    int: _exactly(int, "a whole number"),
    str: _exactly(str, "a text"),
    type(None): _exactly(type(None), "null"),
    float: _float,
    bytes: _bytes,
    Any: _anything,
}
