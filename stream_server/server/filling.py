"""Putting the payload of `Data` where it belongs: into rows of the slots' arrays."""

import zlib
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stream_server.client_api.messages import Data, Reason
from stream_server.errors import StreamServerError
from stream_server.server.layout import Place
from stream_server.server.tracks import Connection, Step

Array = npt.NDArray[Any]
Index = tuple[int | slice | EllipsisType, ...]


class Inlet(Protocol):
    """The rest of one message, frame by frame."""

    def more(self) -> int:
        """Whether a frame is left."""

    def into(self, buffer: Array, /) -> int:
        """Receive a frame into memory; returns the frame's size, of which more than fits is lost."""

    def frame(self) -> memoryview:
        """Receive a frame."""


class Unfit(StreamServerError):
    """The payload is not what the header says."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def run_of(steps: Sequence[Step | None]) -> slice | None:
    """The slots of all these steps as one slice, if they lie side by side in this order."""
    first = steps[0]
    if first is None:
        return None
    start, num = first.slot, len(steps)
    if num == 1 or all(step is not None and step.slot == start + i for i, step in enumerate(steps)):
        return slice(start, start + num)
    return None


def fill_whole(
    arrays: Mapping[str, Array], connection: Connection, data: Data, steps: Sequence[Step | None], inlet: Inlet
) -> None:
    """Receive whole steps into their slots: one frame per block, straight into the rows where that is possible.

    Raises:
        Unfit: a frame too few or too many, of a wrong size, or with a wrong checksum.
    """
    run, num, crc = run_of(steps), data.num_steps, 0
    for i, place in enumerate(connection.places):
        if not data.present >> i & 1:
            continue
        if not inlet.more():
            raise Unfit(Reason.MALFORMED, f"no payload came for field {place.field}")
        array, num_bytes = arrays[place.field], num * place.num_bytes
        if run is not None and place.direct:
            rows = array[run]
            _check_size(place, inlet.into(rows), num_bytes)
            if data.checksum is not None:
                crc = zlib.crc32(rows.data, crc)
            continue
        frame = inlet.frame()
        _check_size(place, frame.nbytes, num_bytes)
        if data.checksum is not None:
            crc = zlib.crc32(frame, crc)
        values = np.frombuffer(frame, place.wire).reshape(num, *place.count)
        if run is not None:
            index: Index = (run, *place.slices)
            array[index] = values
            continue
        for step, value in zip(steps, values, strict=True):
            if step is not None:
                index = (step.slot, *place.slices)
                array[index] = value
    _check_end(data, crc, inlet)


def fill_part(
    arrays: Mapping[str, Array], connection: Connection, data: Data, step: Step, num_bytes: int, inlet: Inlet
) -> None:
    """Receive one part, which must have `num_bytes`, of one block of one step.

    Raises:
        Unfit: as for `fill_whole`.
    """
    place = connection.places[data.field]
    if not inlet.more():
        raise Unfit(Reason.MALFORMED, f"no payload came for field {place.field}")
    if place.direct:
        row = arrays[place.field][step.slot : step.slot + 1].reshape(-1)
        part = row.view(np.uint8)[data.offset : data.offset + num_bytes]
        _check_size(place, inlet.into(part), num_bytes)
        crc = 0 if data.checksum is None else zlib.crc32(part.data)
    else:
        frame = inlet.frame()
        _check_size(place, frame.nbytes, num_bytes)
        crc = 0 if data.checksum is None else zlib.crc32(frame)
        values = np.frombuffer(frame, place.wire)
        index: Index = (step.slot, *place.slices, ...)
        assign(arrays[place.field][index], data.offset // place.wire.itemsize, values)
    _check_end(data, crc, inlet)


def assign(block: Array, start: int, values: Array) -> None:
    """Write `values` into a block of any strides, from element `start` of its C order on."""
    if block.ndim < 2:
        if block.ndim:
            block[start : start + len(values)] = values
        else:
            block[...] = values[0]
        return
    inner = block[0].size
    row, column = divmod(start, inner)
    if column:
        head = min(inner - column, len(values))
        assign(block[row], column, values[:head])
        row, values = row + 1, values[head:]
    num_rows = len(values) // inner
    rows = values[: num_rows * inner]
    block[row : row + num_rows] = rows.reshape(num_rows, *block.shape[1:])
    if len(values) > len(rows):
        assign(block[row + num_rows], 0, values[len(rows) :])


def all_finite(values: Array) -> bool:
    """Whether no value is NaN or infinite."""
    return values.dtype.kind not in "fc" or bool(np.logical_and.reduce(np.isfinite(values), axis=None))


def _check_size(place: Place, found: int, expected: int) -> None:
    if found != expected:
        raise Unfit(Reason.MALFORMED, f"field {place.field} came with {found} bytes where {expected} were expected")


def _check_end(data: Data, crc: int, inlet: Inlet) -> None:
    if inlet.more():
        raise Unfit(Reason.MALFORMED, "more payload came than the header says")
    if data.checksum is not None and crc != data.checksum:
        raise Unfit(Reason.CHECKSUM, "the payload does not fit its checksum: it was changed on the way")
