"""Values of declared types from plain ones of JSON, and texts from outside in messages to people."""

from collections.abc import Collection
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, TypeVar

import msgspec

SHOWN_CHARACTERS = 200
SHOWN_TEXTS = 20

T = TypeVar("T")


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


def from_json(cls: type[T], values: Any) -> T:
    """Make a `cls` from plain values, which have the types and bounds that its attributes declare.

    Raises:
        ValueError: an attribute is missing, of another type or out of its bounds, or a dataclass has none of the name.
    """
    converted = msgspec.convert(values, cls)
    if is_dataclass(converted) and (unknown := values.keys() - {field.name for field in fields(converted)}):
        raise ValueError(f"{listed(sorted(map(repr, unknown)))} is unknown")
    return converted
