"""State of plain containers and arrays as bytes, without pickle."""

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.server.collate import as_array

_ARRAY = "__array__"
_TUPLE = "__tuple__"
_ITEMS = "__items__"


def to_bytes(state: Any) -> bytes:
    """Write dicts, lists, tuples, numbers, strings, None and arrays; an array of any framework becomes NumPy's.

    Raises:
        TypeError: there is something else in it.
    """
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_plain(state, arrays)).encode()
    file = io.BytesIO()
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for array in arrays:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given."""
    file = io.BytesIO(data)
    state = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return _rebuilt(state, file)


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        # As pairs, since JSON would turn every key into a string.
        return {_ITEMS: [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(item, arrays) for item in value]}
    array = as_array(value)
    if array.dtype.hasobject:
        raise TypeError(
            f"state_dict must give plain containers and arrays, but there is a {type(value).__name__} in it"
        )
    arrays.append(array)
    return {_ARRAY: len(arrays)}


def _rebuilt(value: Any, file: io.BytesIO) -> Any:
    if isinstance(value, list):
        return [_rebuilt(item, file) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return np.lib.format.read_array(file, allow_pickle=False)
    if _TUPLE in value:
        return tuple(_rebuilt(item, file) for item in value[_TUPLE])
    return {_key(key): _rebuilt(item, file) for key, item in value[_ITEMS]}


def _key(key: Any) -> Any:
    return tuple(_key(part) for part in key[_TUPLE]) if isinstance(key, dict) else key
