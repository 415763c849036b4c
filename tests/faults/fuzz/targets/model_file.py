"""A .safetensors file from anybody: arrays that are written alike again, or `ValueError`."""

import struct

import numpy as np
from safetensors.numpy import save

from stream_server.storage.tensor_file import read_tensors
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FILE = scratch.folder() / "model.safetensors"
EXAMPLE = save(
    {"w": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.zeros(2, "<f8"), "n": np.ones((), "<i8")}, {"a": "b"}
)


def run(data: bytes) -> None:
    """Read the file, and one with a length of its head that fits."""
    _read(data)
    end = data.find(b"\n", 8)
    if end >= 0:
        _read(struct.pack("<Q", end - 8) + data[8:end] + data[end + 1 :])


def _read(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        tensors = read_tensors(FILE, as_torch=False)
    except ValueError:
        return
    assert sum(tensor.nbytes for tensor in tensors.values()) <= len(data)


(num_text,) = struct.unpack_from("<Q", EXAMPLE)
TARGET = Target(run=run, seeds=(EXAMPLE, EXAMPLE[: 8 + num_text] + b"\n" + EXAMPLE[8 + num_text :]))
