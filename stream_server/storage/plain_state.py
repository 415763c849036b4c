"""State of plain containers and arrays as bytes, without pickle.

A state is 8 bytes that identify the format, the length of a text, the text, and the bytes of the arrays. The text is
JSON: a tree, in which numbers stand for arrays, and the type, shape and order of each array.
"""

import io
import json
import os
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_server.errors import DamagedCheckpoint
from stream_server.storage.disk import MAX_TABLE_BYTES, Opener, open_regular, read_into

MAGIC = b"PLAIN\x00\x01\n"

# Smaller arrays are read at once.
DEFERRED_BYTES = 1 << 16

_HEAD_BYTES = len(MAGIC) + 8
_JUNK = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, MemoryError)

_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,9}(\[\d{0,9}\w{1,9}\])?")
_MAX_DIMENSIONS = 64
_EXTENT_END = 1 << 63
_INT_END = 1 << 63

# In the tree a value is itself, or {tag: content}.
_ARRAY = "__array__"
_SCALAR = "__scalar__"
_BYTES = "__bytes__"
_INT = "__int__"
_COMPLEX = "__complex__"
_DEFAULT_DICT = "__default__"
_SEQUENCES = {"__tuple__": tuple, "__set__": set, "__frozenset__": frozenset}
_DICTS: dict[str, Any] = {"__items__": dict, "__ordered__": OrderedDict, "__counter__": Counter}
_TAGS: dict[Any, str] = {kind: tag for tag, kind in (*_SEQUENCES.items(), *_DICTS.items())}
_FACTORIES: dict[str, Any] = {factory.__name__: factory for factory in (bool, dict, float, int, list, set, str, tuple)}


class Writable(Protocol):
    """Whatever bytes are written to; a buffer that `write` was given may change as soon as it returns."""

    def write(self, data: Any, /) -> Any: ...


class DeferredArray:
    """An array of bytes whose parts are read where they are asked for, each time anew, by `read` from start to stop."""

    dtype = np.dtype(np.uint8)

    def __init__(self, size: int, read: Callable[[int, int], NDArray[np.uint8]]) -> None:
        self.size = size
        self._read = read

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(self.size)
        return self._read(start, stop)


class EncodedState:
    """State that any thread can write, as often as wanted."""

    def __init__(self, text: bytes, arrays: list[NDArray[Any] | DeferredArray]) -> None:
        self._text = text
        self._arrays = arrays

    def write(self, file: Writable) -> None:
        """Write it, array by array; only non-contiguous arrays are copied."""
        file.write(MAGIC + len(self._text).to_bytes(8, "little") + self._text)
        for each in self._arrays:
            array = each[:] if isinstance(each, DeferredArray) else each
            ordered = array.T if _is_fortran(array) else array
            file.write(np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).data)


def encode(state: Any, name: str = "the state") -> EncodedState:
    """Prepare dicts, lists, tuples, sets, numbers, strings, bytes, None and arrays for being written.

    An array of any framework becomes NumPy's. Arrays are not copied: they must not change before they are written.

    Raises:
        TypeError: something in it would not come back as it was; the message says where, as in
            "NAME.optimizer.0 is a Foo".
    """
    return _encoded(state, name, lambda array: array)


def freeze(state: Any, name: str = "the state") -> EncodedState:
    """Like `encode`, with copies of the arrays: later changes of them are not written."""
    return _encoded(state, name, lambda array: array.copy(order="K"))


def to_bytes(state: Any) -> bytes:
    """The state as bytes.

    Raises:
        TypeError: as `encode`.
    """
    file = io.BytesIO()
    encode(state).write(file)
    return file.getvalue()


def from_bytes(data: bytes) -> Any:
    """Decode what `to_bytes` gave. The arrays are NumPy's and may be written to.

    Raises:
        DamagedCheckpoint: the bytes are something else.
    """
    return _read(io.BytesIO(data), len(data))


def write_state(file: Writable, state: Any) -> None:
    """Write the state to a file, from which `read_state` reads it.

    Raises:
        TypeError: as `encode`.
    """
    encode(state).write(file)


def read_state(path: Path, *, opener: Opener = open_regular, deferred: bool = False) -> Any:
    """Read back what `write_state` wrote; `deferred`, arrays of many bytes are each a `DeferredArray` of the file.

    Raises:
        DamagedCheckpoint: the file is something else, or cannot be read.
    """
    try:
        with open(path, "rb", opener=opener) as file:
            return _read(file, os.fstat(file.fileno()).st_size, path if deferred else None)
    except (OSError, DamagedCheckpoint) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


@contextmanager
def damage_in(name: str) -> Iterator[None]:
    """Take what goes wrong with the values of a state that could be read for damage of it; `name` is its name.

    Raises:
        DamagedCheckpoint: they cannot be what was saved.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError, msgspec.MsgspecError) as error:
        raise DamagedCheckpoint(f"{name} cannot be what was saved: {error!r}"[:200]) from error


def as_array(value: Any) -> NDArray[Any]:
    """A NumPy array of an array of any framework."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def has_plain_dtype(array: NDArray[Any]) -> bool:
    """Whether the text of its type says all of it: not so of objects, structures and types of other packages."""
    dtype = array.dtype
    return bool(_DTYPE.fullmatch(dtype.str)) and dtype.itemsize > 0 and np.dtype(dtype.str) == dtype


def parse_dtype(text: str) -> np.dtype[Any]:
    """The type whose `dtype.str` this is. `numpy.dtype` itself would evaluate small programs.

    Raises:
        ValueError, TypeError: there is none, or its items have no size.
    """
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a dtype")
    dtype = np.dtype(text)
    if not dtype.itemsize:
        raise ValueError(f"{text!r} has items of no size")
    return dtype


class _TreeWriter:
    """Turns state into a tree that JSON can express, and collects its arrays, each as `keep` gives it."""

    def __init__(self, keep: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.arrays: list[NDArray[Any] | DeferredArray] = []
        self._keep = keep

    def tree(self, value: Any, path: str) -> Any:
        # Only the very types come back as they were: a named tuple or an enum would lose what makes it one.
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            # JSON takes any integer, but Python reads no more than 4300 decimal digits.
            return value if abs(value) < _INT_END else {_INT: hex(value)}
        if kind is list:
            return self._items(value, path)
        if kind in _SEQUENCES.values():
            return {_TAGS[kind]: self._items(value, path)}
        if kind in _DICTS.values():
            return {_TAGS[kind]: self._pairs(value, path)}
        if kind is defaultdict and value.default_factory in (None, *_FACTORIES.values()):
            factory = value.default_factory
            return {_DEFAULT_DICT: [None if factory is None else factory.__name__, self._pairs(value, path)]}
        if kind is complex:
            return {_COMPLEX: [value.real, value.imag]}
        if kind is bytes:
            return {_BYTES: self._number(np.frombuffer(value, np.uint8))}
        if kind is DeferredArray:
            return {_ARRAY: self._number(value)}
        if hasattr(value, "__array__") and not isinstance(value, type):
            return self._array(value, path)
        raise TypeError(_refusal(path, kind.__name__))

    def _array(self, value: Any, path: str) -> Any:
        try:
            array = np.asarray(as_array(value))
        except TypeError as error:
            raise TypeError(f"{_refusal(path, type(value).__name__)}: {error}") from error
        if isinstance(value, np.ma.MaskedArray) or not has_plain_dtype(array):
            raise TypeError(_refusal(path, f"{type(value).__name__} of {array.dtype}"))
        return {_SCALAR if isinstance(value, np.generic) else _ARRAY: self._number(self._keep(array))}

    def _number(self, array: NDArray[Any] | DeferredArray) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.tree(value, f"{path}.{index}") for index, value in enumerate(values)]

    def _pairs(self, values: dict[Any, Any], path: str) -> list[Any]:
        # As pairs, since JSON would turn every key into a string.
        return [[self.tree(key, f"a key of {path}"), self.tree(item, f"{path}.{key}")] for key, item in values.items()]


class _TreeReader:
    """Makes state of a tree and its arrays."""

    def __init__(self, arrays: Iterable[NDArray[Any] | DeferredArray]) -> None:
        self._arrays: list[NDArray[Any] | DeferredArray | None] = list(arrays)

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((tag, content),) = tree.items()
        if tag in (_ARRAY, _SCALAR, _BYTES):
            return self._of_array(tag, content)
        if tag in _SEQUENCES:
            return _SEQUENCES[tag]([self.value(item) for item in content])
        if tag == _INT:
            return int(content, 16)
        if tag == _COMPLEX:
            real, imag = content
            return complex(float(real), float(imag))
        if tag == _DEFAULT_DICT:
            name, content = content
            return defaultdict(None if name is None else _FACTORIES[name], self._items(content))
        return _DICTS[tag](self._items(content))

    def _items(self, pairs: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in pairs}

    def _of_array(self, tag: str, number: Any) -> Any:
        # Each once: junk that names one again and again would take memory without bounds.
        array = self._arrays[number] if type(number) is int and number >= 0 else None
        if array is None:
            raise ValueError("there is no such array")
        self._arrays[number] = None
        if tag == _ARRAY:
            return array
        array = array[:] if isinstance(array, DeferredArray) else array
        return array.tobytes() if tag == _BYTES else array[()]


class _ArrayReader:
    """Reads an array by its description: type, shape and order."""

    def __init__(self, plain: Any) -> None:
        dtype, shape, self._order = plain
        self._dtype = parse_dtype(dtype)
        if self._order not in ("C", "F") or len(shape) > _MAX_DIMENSIONS:
            raise ValueError("an array is not described")
        if not all(type(extent) is int and 0 <= extent < _EXTENT_END for extent in shape):
            raise ValueError("an array has no shape")
        self._shape = tuple(shape)
        self.num_bytes = self._dtype.itemsize * prod(shape)

    def read(self, file: BinaryIO) -> NDArray[Any]:
        array = np.empty(self._shape if self._order == "C" else self._shape[::-1], self._dtype)
        if not read_into(file, array.reshape(-1).view(np.uint8).data):
            raise ValueError("it ends too soon")
        return array if self._order == "C" else array.T

    def defer(self, file: BinaryIO, path: Path) -> NDArray[Any] | DeferredArray:
        """The array of a file at this path, deferred if it is one of many bytes."""
        if self._dtype != np.uint8 or len(self._shape) != 1 or self.num_bytes < DEFERRED_BYTES:
            return self.read(file)
        start = file.tell()
        file.seek(self.num_bytes, os.SEEK_CUR)
        return DeferredArray(self.num_bytes, partial(_read_part, path, start))


def _read_part(path: Path, place: int, start: int, stop: int) -> NDArray[np.uint8]:
    part = np.empty(stop - start, np.uint8)
    try:
        with open(path, "rb", opener=open_regular) as file:
            file.seek(place + start)
            if read_into(file, part.data):
                return part
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    raise DamagedCheckpoint(f"{path} ends too soon")


def _encoded(state: Any, name: str, keep: Callable[[NDArray[Any]], NDArray[Any]]) -> EncodedState:
    writer = _TreeWriter(keep)
    try:
        tree = writer.tree(state, name)
        text = json.dumps([tree, [_description(array) for array in writer.arrays]])
    except RecursionError as error:
        raise TypeError(f"{name} contains itself, or is nested too deeply") from error
    return EncodedState(text.encode(), writer.arrays)


def _description(array: NDArray[Any] | DeferredArray) -> list[Any]:
    if isinstance(array, DeferredArray):
        return [array.dtype.str, [array.size], "C"]
    return [array.dtype.str, list(array.shape), "F" if _is_fortran(array) else "C"]


def _is_fortran(array: NDArray[Any]) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _read(file: BinaryIO, num_bytes: int, deferred_path: Path | None = None) -> Any:
    try:
        return _decoded(file, num_bytes, deferred_path)
    except _JUNK as error:
        raise DamagedCheckpoint(f"not a saved state ({type(error).__name__}: {error})"[:200]) from error


def _decoded(file: BinaryIO, num_bytes: int, deferred_path: Path | None) -> Any:
    head = file.read(_HEAD_BYTES)
    num_text = int.from_bytes(head[len(MAGIC) :], "little")
    if not head.startswith(MAGIC) or num_text > min(num_bytes - _HEAD_BYTES, MAX_TABLE_BYTES):
        raise ValueError("it does not begin as one")
    tree, descriptions = json.loads(file.read(num_text))
    arrays = [_ArrayReader(plain) for plain in descriptions]
    # Before any memory is taken: junk may speak of arrays of any size.
    expected = _HEAD_BYTES + num_text + sum(array.num_bytes for array in arrays)
    if expected != num_bytes:
        raise ValueError(f"it has {num_bytes} bytes, and {expected} were expected")
    if deferred_path is not None:
        return _TreeReader(array.defer(file, deferred_path) for array in arrays).value(tree)
    return _TreeReader(array.read(file) for array in arrays).value(tree)


def _refusal(path: str, what: str) -> str:
    expected = "dicts, lists, tuples, sets, numbers, strings, bytes, None and arrays of numbers or text"
    return f"{path} is a {what}, but only {expected} can be saved"
