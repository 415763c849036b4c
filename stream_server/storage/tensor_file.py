"""Arrays of any framework by name, in .safetensors files, which every framework reads and which cannot hold code.

The name of an array in nested dicts and lists is its path with dots.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.storage import disk
from stream_server.storage.checksums import ChecksumFile
from stream_server.storage.plain_state import as_array
from stream_server.storage.typed import quoted, shortened

SUFFIX = ".safetensors"
MAX_PARTS = 100

_DTYPES = {
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeferredTensor:
    """A tensor of torch that is still to be read: of the type of `empty`, and of the bytes that `read` gives."""

    empty: Any
    shape: tuple[int, ...]
    read: Callable[[], Any]

    @property
    def dtype(self) -> Any:
        return self.empty.dtype


def can_be_written(value: Any) -> bool:
    """Whether this is an array of a type that the format has."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and getattr(dtype, "name", str(dtype)).removeprefix("torch.") in _DTYPES


def is_torch(tensors: Mapping[str, Any]) -> bool:
    """Whether some of these arrays are torch's."""
    return any(hasattr(tensor, "new_tensor") or isinstance(tensor, DeferredTensor) for tensor in tensors.values())


def write_tensors(path: Path, tensors: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> None:
    """Write arrays, which are all NumPy's or all torch's, under their names; on disk when it returns.

    Tensors that share memory are each written in full. `notes` are texts for the head of the file. One array after the
    other is read.

    Raises:
        OSError: the disk is full or fails.
    """
    head, order = _head(tensors, dict(notes) if notes else None)
    with ChecksumFile(path) as file:
        file.write(head)
        for name in order:
            file.write(_bytes(tensors[name]))
        file.close()


def _head(tensors: Mapping[str, Any], notes: dict[str, str] | None) -> tuple[bytes, list[str]]:
    """The head of a file, and the order in which the arrays follow: as the library writes them, of empty ones here."""
    if is_torch(tensors):
        from safetensors.torch import save

        data = save({name: _empty(tensor) for name, tensor in tensors.items()}, notes)
    else:
        from safetensors.numpy import save as save_arrays

        data = save_arrays({name: np.empty(0, _little_endian(tensor.dtype)) for name, tensor in tensors.items()}, notes)
    head = json.loads(data[8:])
    place = 0
    for name, entry in head.items():
        if name in tensors:
            shape = list(tensors[name].shape)
            stop = place + prod(shape) * tensors[name].dtype.itemsize
            entry |= {"shape": shape, "data_offsets": [place, stop]}
            place = stop
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [name for name in head if name in tensors]


def _empty(tensor: Any) -> Any:
    return tensor.empty if isinstance(tensor, DeferredTensor) else tensor.new_empty(0, device="cpu")


def _bytes(tensor: Any) -> Any:
    if isinstance(tensor, DeferredTensor):
        return tensor.read()
    if hasattr(tensor, "new_tensor"):
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return dense.reshape(-1).view(dense.new_empty(0).byte().dtype).numpy()
    return np.ascontiguousarray(tensor, _little_endian(tensor.dtype)).reshape(-1).view(np.uint8)


def _little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype


def read_tensors(path: Path, *, as_torch: bool) -> dict[str, Any]:
    """The arrays of a file by name, as torch's on the CPU or as NumPy's.

    Raises:
        ValueError: it is no such file, or has what arrays here cannot be, such as 100 dimensions.
        OSError: it cannot be read.
    """
    with _refusing_junk(path):
        if as_torch:
            from safetensors.torch import load

            return dict(load(disk.read_file(path, max_bytes=None)))
        from safetensors.numpy import load as load_arrays

        return dict(load_arrays(disk.read_file(path, max_bytes=None)))


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """A file of torch's tensors as `safetensors.safe_open` gives it, of which some or parts of them can be read.

    Raises:
        ValueError, OSError: as `read_tensors`, also within the block.
    """
    from safetensors import safe_open

    with _refusing_junk(path), safe_open(disk.place_of(path), framework="pt") as file:
        yield file


@contextmanager
def _refusing_junk(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, KeyError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is no {SUFFIX} file that can be read: {shortened(str(error))}") from error


def flattened(state: Any) -> tuple[dict[str, Any], list[str]]:
    """NumPy arrays by path, such as "layers.0.weight" for a list of dicts, and the paths of all that was left out.

    Left out is what is neither an array nor a number, and what has the path of another array, by a dot in a key.
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
    """Undo `flattened`: dicts, and lists wherever the keys are 0, 1, …

    Raises:
        ValueError: a name has too many parts, or is that of an array and of a dict.
    """
    root: dict[str, Any] = {}
    for path, value in arrays.items():
        *above, last = path.split(".")
        if len(above) >= MAX_PARTS:
            raise ValueError(f"the name {quoted(path)} has {len(above) + 1} parts, and may have {MAX_PARTS}")
        here = root
        for key in above:
            here = here.setdefault(key, {})
            if not isinstance(here, dict):
                raise ValueError(f"{quoted(path)} is a name below that of another array")
        if last in here:
            raise ValueError(f"{quoted(path)} is the name of an array and of others below it")
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
