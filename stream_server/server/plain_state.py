"""State of plain containers and arrays as bytes, without pickle.

A state is 8 bytes that say so, the length of a text, the text, and the bytes of the arrays. The text is JSON: a tree,
with numbers in the place of arrays, and the descriptions of the arrays.
"""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from numpy.typing import NDArray

from stream_server.disk import ordinary
from stream_server.errors import DamagedCheckpoint
from stream_server.server.plain_array import Described, array_bytes, description
from stream_server.server.plain_tree import TreeReader, TreeWriter

MAGIC = b"PLAIN\x00\x01\n"

_HEAD_BYTES = len(MAGIC) + 8
_JUNK = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, MemoryError)


class Writable(Protocol):
    """Where state is written to; what `write` was given may change as soon as it returns."""

    def write(self, data: Any) -> Any: ...


class EncodedState:
    """State that any thread can write, as often as wanted."""

    def __init__(self, text: bytes, arrays: list[NDArray[Any]]) -> None:
        self._text = text
        self._arrays = arrays

    @property
    def num_bytes(self) -> int:
        return _HEAD_BYTES + len(self._text) + sum(array.nbytes for array in self._arrays)

    def write(self, file: Writable) -> None:
        """Write it, array by array; only one that is not contiguous is copied."""
        file.write(MAGIC + len(self._text).to_bytes(8, "little") + self._text)
        for array in self._arrays:
            file.write(array_bytes(array))


def encode(state: Any, name: str = "the state") -> EncodedState:
    """Prepare dicts, lists, tuples, sets, numbers, strings, bytes, None and arrays for being written.

    An array of any framework becomes NumPy's. Arrays are not copied: they must not change before they are written.

    Raises:
        TypeError: there is something in it that would not come back as it was, and where, in words like
            "NAME.optimizer.0 is a Foo".
    """
    return _encoded(state, name, lambda array: array)


def freeze(state: Any, name: str = "the state") -> EncodedState:
    """As `encode`, with copies of the arrays: what happens to them later is not written."""
    return _encoded(state, name, lambda array: array.copy(order="K"))


def to_bytes(state: Any) -> bytes:
    """The state as bytes.

    Raises:
        TypeError: there is something in it that `encode` does not take.
    """
    file = io.BytesIO()
    encode(state).write(file)
    return file.getvalue()


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given. Its arrays are NumPy's and may be written to.

    Raises:
        DamagedCheckpoint: the bytes are something else.
    """
    return _read(io.BytesIO(data), len(data))


def write_state(file: Writable, state: Any) -> None:
    """Write the state to a file, from which `read_state` reads it.

    Raises:
        TypeError: there is something in it that `encode` does not take.
    """
    encode(state).write(file)


def read_state(path: Path) -> Any:
    """What `write_state` was given.

    Raises:
        DamagedCheckpoint: the file is something else, or cannot be read.
    """
    try:
        with open(path, "rb", opener=ordinary) as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except (OSError, DamagedCheckpoint) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


def _encoded(state: Any, name: str, keep: Callable[[NDArray[Any]], NDArray[Any]]) -> EncodedState:
    writer = TreeWriter(keep)
    try:
        tree = writer.tree(state, name)
        text = json.dumps([tree, [description(array) for array in writer.arrays]])
    except RecursionError as error:
        raise TypeError(f"{name} contains itself, or is nested too deeply") from error
    return EncodedState(text.encode(), writer.arrays)


def _read(file: BinaryIO, num_bytes: int) -> Any:
    try:
        return _decoded(file, num_bytes)
    except _JUNK as error:
        raise DamagedCheckpoint(f"not a saved state ({type(error).__name__}: {error})"[:200]) from error


def _decoded(file: BinaryIO, num_bytes: int) -> Any:
    head = file.read(_HEAD_BYTES)
    num_text = int.from_bytes(head[len(MAGIC) :], "little")
    if not head.startswith(MAGIC) or num_text > num_bytes - _HEAD_BYTES:
        raise ValueError("it does not begin as one")
    tree, descriptions = json.loads(file.read(num_text))
    arrays = [Described(plain) for plain in descriptions]
    # Before any memory is taken: junk may speak of arrays of any size.
    expected = _HEAD_BYTES + num_text + sum(array.num_bytes for array in arrays)
    if expected != num_bytes:
        raise ValueError(f"it has {num_bytes} bytes, and {expected} were expected")
    return TreeReader(array.read(file) for array in arrays).value(tree)
