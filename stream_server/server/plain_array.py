"""Arrays as a description and their bytes."""

import re
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,9}(\[\d{0,9}\w{1,9}\])?")
_MOST_DIMENSIONS = 64
_EXTENT_END = 1 << 63


def can_be_described(dtype: np.dtype[Any]) -> bool:
    """Whether its text says all of a type: not so of objects, structures and types of other packages."""
    return bool(_DTYPE.fullmatch(dtype.str)) and dtype.itemsize > 0 and np.dtype(dtype.str) == dtype


def dtype_of(text: str) -> np.dtype[Any]:
    """The type that a text stands for, as `dtype.str` is one. NumPy itself would read small programs.

    Raises:
        ValueError, TypeError: it is none.
    """
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no type")
    return np.dtype(text)


def description(array: NDArray[Any]) -> list[Any]:
    """Type, shape and order, as JSON can say them."""
    return [array.dtype.str, list(array.shape), "F" if _is_fortran(array) else "C"]


def array_bytes(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, in the order in which they are described; a copy only if it is not contiguous."""
    ordered = array.T if _is_fortran(array) else array
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).data


class Described:
    """An array that is yet to be read."""

    def __init__(self, plain: Any) -> None:
        """Understand what `description` gave.

        Raises:
            ValueError, TypeError: it is something else.
        """
        dtype, shape, self._order = plain
        self._dtype = dtype_of(dtype)
        if self._order not in ("C", "F") or len(shape) > _MOST_DIMENSIONS:
            raise ValueError("an array is not described")
        if not all(type(extent) is int and 0 <= extent < _EXTENT_END for extent in shape):
            raise ValueError("an array has no shape")
        self._shape = tuple(shape)
        self.num_bytes = self._dtype.itemsize
        if not self.num_bytes:
            raise ValueError("an array has items of no size")
        for extent in shape:
            self.num_bytes *= extent

    def read(self, file: BinaryIO) -> NDArray[Any]:
        """The array, from the bytes that come next.

        Raises:
            ValueError: there are too few of them, or no array can have this shape.
        """
        array = np.empty(self._shape if self._order == "C" else self._shape[::-1], self._dtype)
        view = array.reshape(-1).view(np.uint8).data
        while view:
            num = file.readinto(view)  # type: ignore[attr-defined]
            if not num:
                raise ValueError("it ends too soon")
            view = view[num:]
        return array if self._order == "C" else array.T


def _is_fortran(array: NDArray[Any]) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous
