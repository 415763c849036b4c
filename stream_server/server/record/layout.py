"""The bytes of a record: entries of one size, each a head and either the fields of a sample or parameters."""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stream_server.client_api.messages import FieldSpec

Entries = npt.NDArray[Any]

HEAD = np.dtype(
    [
        ("checksum", "<u8"),
        ("number", "<u8"),
        ("simulation", "<i8"),
        ("time_step", "<i8"),
        ("present", "<u8"),
        ("kind", "<u8"),
    ]
)
CHECKSUM_BYTES = 8

_HEAD = struct.Struct("<QQqqQQ")


class Kind(IntEnum):
    """What an entry tells."""

    SAMPLE = 0
    HELD_OUT = 1
    PARAMETERS = 2
    FINISHED = 3
    WITHDRAWN = 4
    END = 5


SAMPLES = (Kind.SAMPLE, Kind.HELD_OUT)


class Head(NamedTuple):
    """The first bytes of an entry. `number` counts a rank's entries, bit i of `present` stands for field i."""

    checksum: int
    number: int
    simulation: int
    time_step: int
    present: int
    kind: int

    @classmethod
    def unpack(cls, data: bytes) -> "Head":
        return cls(*_HEAD.unpack_from(data))


class Layout:
    """How the entries of a file are laid out: in NumPy's words `dtype`, little-endian, C order, without gaps.

    All entries have the size of the largest, so that the place of each follows from its number.
    """

    def __init__(self, fields: Sequence[FieldSpec], num_parameters: int) -> None:
        self.fields = tuple(fields)
        self.num_parameters = num_parameters
        sample = np.dtype([(field.name, np.dtype(field.dtype).newbyteorder("<"), field.shape) for field in fields])
        parameters = np.dtype(("<f8", (num_parameters,)))
        self.dtype = np.dtype(
            {
                "names": ["head", "fields", "parameters"],
                "formats": [HEAD, sample, parameters],
                "offsets": [0, HEAD.itemsize, HEAD.itemsize],
                "itemsize": HEAD.itemsize + max(sample.itemsize, parameters.itemsize),
            }
        )

    @property
    def num_bytes(self) -> int:
        """The size of one entry."""
        return self.dtype.itemsize


def seal(entries: Entries) -> None:
    """Set the checksums of entries whose other bytes are final."""
    size, data = entries.itemsize, entries.view(np.uint8).data
    starts = range(0, size * len(entries), size)
    entries["head"]["checksum"] = [xxh3_64_intdigest(data[start + CHECKSUM_BYTES : start + size]) for start in starts]


def is_sound(data: bytes, head: Head) -> bool:
    """Whether the bytes of an entry are those that were written."""
    return xxh3_64_intdigest(memoryview(data)[CHECKSUM_BYTES:]) == head.checksum
