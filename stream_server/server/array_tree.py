"""Arrays in nested dicts and lists, as one flat dict whose keys are paths with dots."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stream_server.server.collate import as_array


def flattened(state: Any) -> tuple[dict[str, Any], list[str]]:
    """NumPy arrays by path, such as "layers.0.weight" for a list of dicts; and the paths of all that has no place here.

    That is what is neither an array nor a number, and what has the path of another one, by a dot in a key.
    """
    arrays: dict[str, Any] = {}
    others = []
    for path, value in _leaves(state, ""):
        is_array = isinstance(value, bool | int | float) or hasattr(value, "__array__")
        if is_array and path not in arrays:
            arrays[path] = np.asarray(as_array(value))
        else:
            others.append(path)
    return arrays, others


def nested(arrays: Mapping[str, Any]) -> Any:
    """The opposite of `flattened`: dicts, and lists wherever the keys are 0, 1, …"""
    root: dict[str, Any] = {}
    for path, value in arrays.items():
        *above, last = path.split(".")
        here = root
        for key in above:
            here = here.setdefault(key, {})
        here[last] = value
    return _with_lists(root)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _with_lists(item) for key, item in value.items()}
    indices = [str(index) for index in range(len(items))]
    # A file gives its arrays in any order.
    return [items[index] for index in indices] if items and items.keys() == set(indices) else items
