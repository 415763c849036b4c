"""Arrays of any framework in a .safetensors file, which every framework can read and nothing can hide code in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream_server import disk

SUFFIX = ".safetensors"

_DTYPES = {
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"),
}


def can_be_written(value: Any) -> bool:
    """Whether this is an array of a type that the format has."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and getattr(dtype, "name", str(dtype)).removeprefix("torch.") in _DTYPES


def write_tensors(path: Path, tensors: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> None:
    """Write arrays, which are all NumPy's or all torch's on the CPU, under their names; on disk when it returns.

    Tensors that share memory are each written in full. `notes` are texts for the head of the file.

    Raises:
        OSError: the disk is full or fails.
    """
    if any(hasattr(tensor, "new_tensor") for tensor in tensors.values()):
        from safetensors.torch import save

        data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(notes or {}))
    else:
        from safetensors.numpy import save as save_arrays

        data = save_arrays({name: np.asarray(it, order="C") for name, it in tensors.items()}, dict(notes or {}))
    disk.write_file(path, data)


def read_tensors(path: Path, *, as_torch: bool) -> dict[str, Any]:
    """The arrays of a file by name, as torch's on the CPU or as NumPy's.

    Raises:
        ValueError: it is no such file.
        OSError: it cannot be read.
    """
    from safetensors import SafetensorError

    try:
        if as_torch:
            from safetensors.torch import load

            return dict(load(disk.read_file(path)))
        from safetensors.numpy import load as load_arrays

        return dict(load_arrays(disk.read_file(path)))
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is no {SUFFIX} file that can be read: {error}") from error
