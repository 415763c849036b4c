"""Messages as frames of JSON and back: `{"message": "Progress", "simulation": 3, …}`.

The attributes of a dataclass are the keys of the object; `storage.typed` says what their values may be. An envelope
adds keys that belong to no message, such as a number.
"""

import json
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from stream_server.errors import MalformedMessage
from stream_server.storage.typed import plain, quoted, typed

T = TypeVar("T")
SHOWN_BYTES = 200


def by_name(kinds: Iterable[type[T]]) -> dict[str, type[T]]:
    """Messages that one end may get, by the names under which they come."""
    return {kind.__name__: kind for kind in kinds}


def encode(message: Any | None, **envelope: Any) -> bytes:
    """The frame of a message, or of an envelope without one.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    values = envelope if message is None else {"message": type(message).__name__, **envelope, **plain(message)}
    return _ENCODER.encode(values).encode()


def parse(frame: bytes | memoryview) -> dict[str, Any]:
    """The object of a frame: strict JSON, in which no key occurs twice.

    Raises:
        MalformedMessage: it is none.
    """
    try:
        values = _DECODER.decode(str(frame, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"{shown(frame)} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise MalformedMessage(f"{shown(frame)} is no object")
    return values


def message(values: dict[str, Any], kinds: Mapping[str, type[T]]) -> T:
    """The message of a parsed frame, of which the envelope has been taken away.

    Raises:
        MalformedMessage: it is none of these kinds, or breaks a bound.
    """
    name = values.pop("message", None)
    if not isinstance(name, str) or name not in kinds:
        raise MalformedMessage(f"{quoted(name)} is no message that is expected here")
    try:
        return typed(kinds[name], values)
    except TypeError as error:
        raise MalformedMessage(f"{name}: {error}") from error


def shown(frame: bytes | memoryview) -> str:
    """The beginning of a frame, for messages to people."""
    return repr(bytes(frame[:SHOWN_BYTES]))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _integer(text: str) -> int | float:
    # A float keeps its sign, and the client in C writes all floats with a point; a whole number has none to lose.
    return -0.0 if text == "-0" else int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond the numbers of 64 bits")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return values


# Made once: json.dumps and json.loads with options make others for each message.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=operator.index)
_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float, object_pairs_hook=_object
)
