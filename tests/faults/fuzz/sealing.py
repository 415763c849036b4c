"""Checksums that fit: a fuzzer would never guess one, and what is behind it would never be read."""

import json

from stream_server.storage.checksums import checksummed_json


def resealed(data: bytes, *, indent: int | None = 2) -> bytes:
    """A checksummed JSON file with the checksum of its content; what is no JSON object stays as it is."""
    try:
        plain = json.loads(data)
        plain.pop("xxh3", None)
        return checksummed_json(plain, indent=indent)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data
