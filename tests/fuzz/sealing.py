"""Seals that fit: a fuzzer would never guess a checksum, and what is behind it would never be read."""

import json

from stream_server.server.sealed import sealed


def resealed(data: bytes) -> bytes:
    """A sealed JSON file with another content, and the checksum of that; what is no JSON object stays as it is."""
    try:
        plain = json.loads(data)
        plain.pop("xxh3", None)
        return sealed(plain)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data
