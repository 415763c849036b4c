"""Arrays that differ in their first axis, such as the particles of several time steps; padded or packed into one.

Several are kept as one array of dtype object, whose elements they are. It is indexed and gone through as a list is.

Why: docs/decisions/0025-ragged-slots.md
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pack(arrays: Iterable[Array]) -> tuple[Array, NDArray[np.int64]]:
    """The rows of all arrays one after the other, and where those of each array begin.

    Args:
        arrays: B arrays of the shapes (n_i, …), of which all but the first axis agree; one at least. Of windows, whose
            steps are arrays of as many rows each, an array of the shape (B, steps) with these elements.

    Returns:
        `values` of shape (sum of all n_i, …), of windows (sum of all n_i, steps, …), and `offsets` of shape (B + 1,):
        the rows of array i are `values[offsets[i] : offsets[i + 1]]`. `np.repeat(np.arange(B), np.diff(offsets))` says
        of which array each row is, as the `batch` of PyTorch Geometric does.

    Raises:
        ValueError: the number of rows changes within a window.
    """
    arrays = [_steps_beside(array) if is_ragged(array) else array for array in arrays]
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return np.concatenate(arrays), offsets


def unpack(values: Array, lengths: Sequence[int]) -> Array:
    """The windows of which `pack` made `values`, shape (len(lengths), steps): views of their rows in each step."""
    windows = np.split(values, np.cumsum(lengths)[:-1])
    together = np.empty((len(windows), values.shape[1]), object)
    for row, window in enumerate(windows):
        together[row] = array_of([window[:, step] for step in range(values.shape[1])])
    return together


def _steps_beside(window: Array) -> Array:
    lengths = [len(step) for step in window]
    if len({*lengths}) > 1:
        raise ValueError(
            f"the steps of a window have {lengths} rows, and cannot lie beside each other: "
            'pack each step by itself, as in pack(batch.fields["x"][:, 0])'
        )
    return np.stack(list(window), axis=1)


def pad(arrays: Iterable[Array], value: float = 0) -> tuple[Array, NDArray[np.bool_]]:
    """All arrays with as many rows as the longest has, and which of these are theirs.

    Args:
        arrays: B arrays of the shapes (n_i, …), of which all but the first axis agree; one at least.
        value: what the rows are filled with that an array does not have.

    Returns:
        `values` of shape (B, longest n_i, …), and `mask` of shape (B, longest n_i), which is True where a row is the
        array's own.
    """
    arrays = list(arrays)
    lengths = np.array([len(array) for array in arrays])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.full((*mask.shape, *arrays[0].shape[1:]), value, arrays[0].dtype)
    for row, array in zip(values, arrays, strict=True):
        row[: len(array)] = array
    return values, mask


def array_of(arrays: Sequence[Array]) -> Array:
    """One array of dtype object, of shape (len(arrays),), with these elements."""
    together = np.empty(len(arrays), object)
    for i, array in enumerate(arrays):
        together[i] = array
    return together


def is_ragged(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == object


def copied(array: Array) -> Array:
    """A copy, of the elements too."""
    copy = array.copy()
    if is_ragged(array):
        for place, element in np.ndenumerate(array):
            copy[place] = element.copy()
    return copy


def row_of(array: Array, row: int) -> Array:
    """One row as a view; of an array of arrays that is the element."""
    return array[row] if is_ragged(array) and array.ndim == 1 else array[row, ...]
