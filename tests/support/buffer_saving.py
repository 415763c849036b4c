"""Writing and reading buffers without files."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Buffer, Frozen
from stream_server.buffers.policy import State


def stored(state: Any) -> Any:
    """The state as if it had been written, arrays as bytes and the rest as JSON, and read: its arrays are read-only."""
    if isinstance(state, dict):
        return {json.loads(json.dumps(key)): stored(value) for key, value in state.items()}
    if isinstance(state, list):
        return [stored(value) for value in state]
    if isinstance(state, np.ndarray):
        return np.frombuffer(state.tobytes(), state.dtype).reshape(state.shape)
    return json.loads(json.dumps(state))


def plain(state: Any) -> Any:
    """The state with lists for arrays, which can be compared."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, np.ndarray) else state


def chunks(frozen: Frozen, num: int) -> Iterator[tuple[int, int]]:
    """The rows in ranges (start, stop) of `num`, the last one maybe shorter."""
    return ((start, min(start + num, len(frozen))) for start in range(0, len(frozen), num))


def save(buffer: Buffer) -> tuple[State, dict[str, npt.NDArray[Any]]]:
    """Freeze a buffer, read its state and rows chunk by chunk as a writer does, and thaw it."""
    frozen = buffer.freeze()
    state = stored(frozen.state())
    fields = {name: np.empty((len(frozen), *shape), dtype) for name, (dtype, shape) in frozen.fields.items()}
    for start, stop in chunks(frozen, 2):
        for name, values in fields.items():
            values[start:stop] = frozen.rows(name, start, stop)
        buffer.thaw(frozen, start, stop)
    return state, fields


def load(buffer: Buffer, state: State, fields: Mapping[str, npt.NDArray[Any]]) -> None:
    """Load what was saved, and put the rows into their place."""
    buffer.load(state)
    for name, array in buffer.slots.arrays.items():
        array[: len(fields[name])] = fields[name]
