"""Values out of JSON as dataclasses whose attributes are of the types that they say."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(cls: type[T], values: Any) -> T:
    """A `cls` with these attributes, by name.

    Raises:
        TypeError: one is missing, unknown or of another type.
    """
    made = cls(**values)
    kind: Any = cls
    for name, expected in _types(kind):
        if not _is_a(getattr(made, name), expected):
            raise TypeError(f"{name} is no {expected}")
    return made


@cache
def _types(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in fields(cls))


def _is_a(value: Any, expected: Any) -> bool:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (UnionType, Union):
        return any(_is_a(value, one) for one in arguments)
    if origin in (dict, Mapping):
        of_key, of_item = arguments
        return type(value) is dict and all(_is_a(key, of_key) and _is_a(item, of_item) for key, item in value.items())
    if origin is tuple:
        return type(value) is tuple and all(_is_a(item, arguments[0]) for item in value)
    # A whole number is a number, too; but in JSON true is none.
    return expected is Any or type(value) is expected or (expected is float and type(value) is int)
