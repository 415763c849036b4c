"""State whose large arrays several processes have saved in parts, each process in a file of its own.

In the state a reference stands in the place of such an array. The file of a process has its part under that name.

Why: docs/decisions/0102-saved-shards.md
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.storage.plain_state import DeferredArray, damage_in

# The key of a state with references that has the number of processes.
SHARED_BY = "shared_by"

_SHARDS = "__shards__"


def reference(name: str) -> dict[str, str]:
    """What stands in a state for the bytes of an array, whose parts have this name."""
    return {_SHARDS: name}


def shard(*, dtype: str, shape: Sequence[int], offset: int, values: NDArray[np.uint8]) -> dict[str, Any]:
    """A part of an array for the file of its process: the bytes of the rows from `offset` on."""
    return {"dtype": dtype, "shape": list(shape), "offset": offset, "values": values}


def join(state: Any, files: Sequence[Mapping[str, Any]]) -> None:
    """Put an array that reads the parts in `files`, of all processes in their order, in place of each reference.

    Raises:
        DamagedCheckpoint: the parts do not make up an array.
    """
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        if isinstance(value, dict) and _SHARDS in value:
            name = value[_SHARDS]
            with damage_in(f"the shards of {name}"):
                state[key] = _joined([file[name] for file in files])
        elif isinstance(value, dict | list | tuple):
            join(value, files)


def _joined(parts: Sequence[Mapping[str, Any]]) -> DeferredArray:
    num_bytes, num_rows = sum(part["values"].size for part in parts), parts[0]["shape"][0]
    place = 0
    for part in parts:
        described = (part["dtype"], part["shape"], part["offset"] * num_bytes)
        # A part without rows may begin anywhere.
        if described != (parts[0]["dtype"], parts[0]["shape"], place * num_rows) and part["values"].size:
            raise ValueError("they are parts of different arrays, or some are missing")
        place += part["values"].size
    return DeferredArray(num_bytes, partial(_read, [part["values"] for part in parts]))


def _read(parts: Sequence[Any], start: int, stop: int) -> NDArray[np.uint8]:
    """The bytes from `start` to `stop` of arrays that follow each other."""
    read, place = np.empty(stop - start, np.uint8), 0
    for part in parts:
        first, last = max(start - place, 0), min(stop - place, part.size)
        if first < last:
            read[place + first - start : place + last - start] = part[first:last]
        place += part.size
    return read
