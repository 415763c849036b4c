"""Messages as frames of JSON: `{"message": "Progress", "simulation": 3, …}`.

The attributes of a class are the keys of its object, and their types say what the values may be. A key that occurs
twice counts once: the last one.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from stream_server.errors import MalformedMessage
from stream_server.storage.typed import shortened


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of JSON that has these keys and no others; one with a default may be left out.

    `__post_init__` raises a ValueError where its attributes do not go together.
    """


class JsonMessage(JsonObject, frozen=True, kw_only=True, tag_field="message", tag=True):
    """An object that names its class, so that a reader may expect several."""


def encode(message: JsonObject) -> bytes:
    """The frame of a message. A number that is infinite or not a number becomes null.

    Raises:
        ValueError: a text has half of a surrogate pair.
    """
    return _ENCODER.encode(message)


def decoder(kinds: Any) -> Callable[[bytes | memoryview], Any]:
    """A function that gives the message of a frame: one of this class, or union of classes.

    It raises MalformedMessage where the frame is none of them, or breaks a bound.
    """
    decode = msgspec.json.Decoder(kinds).decode

    def checked(frame: bytes | memoryview) -> Any:
        try:
            return decode(frame)
        except (ValueError, RecursionError) as error:
            # It names keys and values that come from outside.
            raise MalformedMessage(shortened(repr(str(error))[1:-1])) from error

    return checked


def _plain(number: Any) -> Any:
    """A number of NumPy as one of Python."""
    return number.item()


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
