"""Small JSON files that are read back only if every byte of them is as it was written."""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_SEAL = "xxh3"


def sealed(plain: Mapping[str, Any]) -> bytes:
    """The text of an object, for people too, whose last entry is the checksum of the rest."""
    text = json.dumps(plain, indent=2)
    return (json.dumps({**plain, _SEAL: xxhash.xxh3_128_hexdigest(text.encode())}, indent=2) + "\n").encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """What `sealed` was given.

    Raises:
        ValueError: these are other bytes.
    """
    try:
        plain: dict[str, Any] = json.loads(data)
        del plain[_SEAL]
        is_whole = sealed(plain) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"it does not end with its checksum: {error}") from error
    if not is_whole:
        raise ValueError("it does not match its own checksum")
    return plain
