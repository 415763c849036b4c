"""Collation: stacks the samples that a user's code returned into the batch of the training step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import DTypeLike

from stream_server.errors import UserCodeError
from stream_server.ragged import is_ragged


class NumpyCollate:
    """Stacks arrays and numbers, through tuples, lists and dicts, into copies; floating ones become `dtype`.

    Complex ones become the complex type of the same precision.

    Anything else, such as a string, is collected in a list.
    """

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self._dtype = np.dtype(dtype)
        self._dtypes = {"f": self._dtype, "c": np.result_type(self._dtype, np.complex64)}

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Stack the samples of a batch, which have one structure.

        Raises:
            UserCodeError: the samples differ in structure or shape.
        """
        first = samples[0]
        if isinstance(first, Mapping):
            self._agree(samples, [tuple(sample) for sample in samples])
            return {key: self([sample[key] for sample in samples]) for key in first}
        if isinstance(first, tuple | list):
            self._agree(samples, [len(sample) for sample in samples])
            return _rebuild(first, [self(column) for column in zip(*samples, strict=True)])
        if self.is_array(first):
            self._agree_in_shape(samples)
            return self.stack(samples)
        return list(samples)

    def convert(self, data: Any) -> Any:
        """`data` as a user's `process_batch` made it, with every floating array in the precision's dtype.

        An array of arrays becomes a list of them.
        """
        return self._map(self.convert_array, data)

    def copied(self, data: Any) -> Any:
        """`data` as `convert` gave it, with a copy of every array."""
        return self._map(self.copy_array, data)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray | np.generic | int | float | complex)

    def stack(self, arrays: Sequence[Any]) -> Any:
        for array in arrays:
            _refuse_masked(array)
        return np.stack(arrays, dtype=self.dtype_for(arrays[0]), casting="unsafe")

    def convert_array(self, array: Any) -> Any:
        if type(array) is np.ndarray:
            return np.asarray(array, self._dtypes.get(array.dtype.kind))
        _refuse_masked(array)
        return np.asarray(array, self.dtype_for(array))

    def copy_array(self, array: Any) -> Any:
        return array.copy()

    def dtype_for(self, value: Any) -> np.dtype[Any] | None:
        """The precision's dtype for floating and complex arrays, None (leave it) for all others."""
        dtype = value.dtype if isinstance(value, np.ndarray | np.generic) else np.asarray(value).dtype
        return self._dtypes.get(dtype.kind)

    def arrays_in(self, data: Any) -> list[Any]:
        """The arrays in a sample into which one may write."""
        if isinstance(data, Mapping):
            data = tuple(data.values())
        if isinstance(data, tuple | list):
            return [array for value in data for array in self.arrays_in(value)]
        return [data] if self.is_writable(data) else []

    def is_writable(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def bytes_of(self, array: Any) -> bytes:
        return bytes(array.tobytes())

    def address_of(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def _map(self, function: Callable[[Any], Any], data: Any) -> Any:
        if isinstance(data, np.ndarray):
            return [self._map(function, element) for element in data] if is_ragged(data) else function(data)
        if isinstance(data, tuple | list):
            return _rebuild(data, [self._map(function, value) for value in data])
        if isinstance(data, Mapping):
            return {key: self._map(function, value) for key, value in data.items()}
        return function(data) if self.is_array(data) else data

    def _agree_in_shape(self, samples: Sequence[Any]) -> None:
        shapes = [tuple(np.shape(sample)) for sample in samples]
        if len(set(shapes)) > 1 and all(shapes) and len({shape[1:] for shape in shapes}) == 1:
            different = next(shape for shape in shapes if shape != shapes[0])
            raise UserCodeError(
                f"arrays of the shapes {shapes[0]} and {different} cannot be stacked, which process_simulation_data "
                "returned for samples of one batch: define process_batch instead, and put those of the batch together "
                "with stream_server.pack or stream_server.pad"
            )
        self._agree(samples, shapes)

    def _agree(self, samples: Sequence[Any], forms: Sequence[Any]) -> None:
        different = next((form for form in forms if form != forms[0]), None)
        if different is not None:
            raise UserCodeError(
                "process_simulation_data must return the same structure for every sample of a batch, but returned "
                f"{type(samples[0]).__name__}s of {forms[0]} and {different}"
            )


class KeptSample:
    """Notices that making a sample has changed an earlier one of its batch: they would all hold the last one.

    It refers to no sample: a loader that has dropped one does not have it any more.
    """

    def __init__(self, collate: NumpyCollate) -> None:
        self._collate = collate
        self._first: list[tuple[ReferenceType[Any], bytes]] | None = None

    def note(self, sample: Any) -> Any:
        """A sample was made, and is given back; the first one since `check` is looked at again."""
        if self._first is None and sample is not None:
            self._first = [(ref(array), self._collate.bytes_of(array)) for array in self._collate.arrays_in(sample)]
        return sample

    def look_again(self) -> None:
        """Note that what others have made of the first sample is right."""
        arrays = [array for reference, _ in self._first or [] if (array := reference()) is not None]
        self._first = [(ref(array), self._collate.bytes_of(array)) for array in arrays] if arrays else None

    def check(self) -> None:
        """All samples of a batch were made, or another one.

        Raises:
            UserCodeError: the first of them is not what it was.
        """
        first, self._first = self._first or [], None
        arrays = ((reference(), content) for reference, content in first)
        if any(array is not None and self._collate.bytes_of(array) != content for array, content in arrays):
            raise UserCodeError(
                "process_simulation_data fills an array anew that it has returned for another sample of the batch, so "
                "that both hold the last one: return a new array each time, such as array.copy()"
            )


class SharedArrays:
    """Notices an array that samples of one batch share and that is refilled: they would all hold its last content.

    It keeps such arrays, and no samples. One that the samples share and that stays as it is, such as a grid, is right.
    """

    def __init__(self, collate: NumpyCollate) -> None:
        self._collate = collate
        self._shared: dict[int, tuple[Any, bytes]] = {}

    def check(self, samples: Sequence[Any], name: str) -> None:
        """The loader `name` is about to make a batch of these samples.

        Raises:
            UserCodeError: an array that they share was shared in the batch before, with another content.
        """
        arrays: dict[int, Any] = {}
        shared: dict[int, Any] = {}
        for sample in {id(sample): sample for sample in samples}.values():
            own = {self._collate.address_of(array): array for array in self._collate.arrays_in(sample)}
            shared |= {key: array for key, array in own.items() if key in arrays}
            arrays |= own
        before = [self._shared[key] for key in shared if key in self._shared]
        self._shared = {key: (array, self._collate.bytes_of(array)) for key, array in shared.items()}
        # Views of one table begin at one place: it is the array of before that is looked at again.
        if any(self._collate.bytes_of(array) != content for array, content in before):
            raise UserCodeError(
                f"samples of a batch that {name} makes hold one array, which is filled anew for each of them, so that "
                "all hold the last content: put a new array into each sample, such as array.copy()"
            )


def _refuse_masked(array: Any) -> None:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise UserCodeError(
            "an array has masked values, which stand for no number: return array.filled(…) with the number that your "
            "model is to see there, and the mask beside it if it needs that"
        )


def _rebuild(like: Any, values: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*values)
    return tuple(values) if isinstance(like, tuple) else values
