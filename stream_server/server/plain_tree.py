"""State as a tree that JSON can say, with its arrays apart."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.server.collate import as_array
from stream_server.server.plain_array import can_be_described

_ARRAY = "__array__"
_SCALAR = "__scalar__"
_BYTES = "__bytes__"
_INT = "__int__"
_COMPLEX = "__complex__"
_TUPLE = "__tuple__"
_SET = "__set__"
_FROZENSET = "__frozenset__"
_ITEMS = "__items__"
_ORDERED = "__ordered__"
_COUNTER = "__counter__"
_DEFAULT = "__default__"

_FACTORIES = {factory.__name__: factory for factory in (bool, dict, float, int, list, set, str, tuple)}
_SMALL_INT = 1 << 63


class TreeWriter:
    """Turns state into a tree and collects its arrays, each as `keep` gives it."""

    def __init__(self, keep: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._keep = keep

    def tree(self, value: Any, path: str) -> Any:
        """The tree of a value, which errors call by its path.

        Raises:
            TypeError: there is something in it that would not come back as it was.
        """
        # Only the very types come back as they were: a named tuple or an enum would lose what makes it one.
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            # JSON takes any integer, but Python reads no more than 4300 decimal digits.
            return value if abs(value) < _SMALL_INT else {_INT: hex(value)}
        if kind is list:
            return self._trees(value, path)
        if kind is dict:
            return {_ITEMS: self._pairs(value, path)}
        if kind is tuple:
            return {_TUPLE: self._trees(value, path)}
        if hasattr(value, "__array__") and not isinstance(value, type):
            return self._array(value, path)
        return self._rare(value, path)

    def _rare(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is complex:
            return {_COMPLEX: [value.real, value.imag]}
        if kind is bytes:
            return {_BYTES: self._number(np.frombuffer(value, np.uint8))}
        if kind is set:
            return {_SET: self._trees(value, path)}
        if kind is frozenset:
            return {_FROZENSET: self._trees(value, path)}
        if kind is OrderedDict:
            return {_ORDERED: self._pairs(value, path)}
        if kind is Counter:
            return {_COUNTER: self._pairs(value, path)}
        if kind is defaultdict and (value.default_factory is None or value.default_factory in _FACTORIES.values()):
            factory = value.default_factory
            return {_DEFAULT: [None if factory is None else factory.__name__, self._pairs(value, path)]}
        raise TypeError(_refusal(path, kind.__name__))

    def _array(self, value: Any, path: str) -> Any:
        try:
            array = np.asarray(as_array(value))
        except TypeError as error:
            raise TypeError(f"{_refusal(path, type(value).__name__)}: {error}") from error
        if isinstance(value, np.ma.MaskedArray) or not can_be_described(array.dtype):
            raise TypeError(_refusal(path, f"{type(value).__name__} of {array.dtype}"))
        return {_SCALAR if isinstance(value, np.generic) else _ARRAY: self._number(self._keep(array))}

    def _number(self, array: NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _trees(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.tree(value, f"{path}.{index}") for index, value in enumerate(values)]

    def _pairs(self, values: dict[Any, Any], path: str) -> list[Any]:
        # As pairs, since JSON would turn every key into a string.
        return [[self.tree(key, f"a key of {path}"), self.tree(item, f"{path}.{key}")] for key, item in values.items()]


class TreeReader:
    """Makes state of a tree and its arrays."""

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        self._arrays: list[NDArray[Any] | None] = list(arrays)

    def value(self, tree: Any) -> Any:
        """What the tree was made of.

        Raises:
            ValueError, TypeError, KeyError, IndexError: it is no such tree.
            RecursionError: nor this.
        """
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((tag, content),) = tree.items()
        if tag in (_ARRAY, _SCALAR, _BYTES):
            return self._of_array(tag, content)
        if tag in (_TUPLE, _SET, _FROZENSET):
            kind = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[tag]
            return kind([self.value(item) for item in content])
        if tag == _INT:
            return int(content, 16)
        if tag == _COMPLEX:
            real, imag = content
            return complex(float(real), float(imag))
        if tag == _DEFAULT:
            name, content = content
            return defaultdict(None if name is None else _FACTORIES[name], self._items(content))
        return {_ITEMS: dict, _ORDERED: OrderedDict, _COUNTER: Counter}[tag](self._items(content))

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
        return array.tobytes() if tag == _BYTES else array[()]


def _refusal(path: str, what: str) -> str:
    expected = "dicts, lists, tuples, sets, numbers, strings, bytes, None and arrays of numbers or text"
    return f"{path} is a {what}, but only {expected} can be saved"
