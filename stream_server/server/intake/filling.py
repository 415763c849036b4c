"""Writes the payload of `Data` into rows of the slots' arrays."""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Slots
from stream_server.errors import StreamServerError
from stream_server.messages.client import MAX_PART_BYTES, Data, Reason
from stream_server.server.intake.layout import Place
from stream_server.wording import counted

# The sum of squares is finite only if all values are, and takes half as long as asking each. Larger arrays would wake
# the threads of the linear algebra library.
MAX_SQUARED = 10_000

Array = npt.NDArray[Any]
SharedRows = dict[tuple[str, int], tuple[Array, int]]
"""By field and client rank: an array, and how many of its rows have come."""
Index = tuple[int | slice | list[int] | EllipsisType, ...]


class Payload(Protocol):
    """The rest of one message, frame by frame."""

    def more(self) -> bool:
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


def side_by_side(slots: Sequence[int]) -> slice | None:
    """The slots as one slice, if they lie side by side in this order."""
    first, num = slots[0], len(slots)
    if num == 1 or (slots[-1] - first == num - 1 and list(slots) == list(range(first, first + num))):
        return slice(first, first + num)
    return None


def fill_steps(
    store: Slots,
    places: Sequence[Place],
    slots: Sequence[int],
    payload: Payload,
    checksum: int | None = None,
    kept: Sequence[bool] | None = None,
    keep: Callable[[Place, Array], None] | None = None,
) -> bool:
    """Receive whole steps, one frame per place. `kept` says which of the steps have a slot, if not all of them.

    `keep` is given the rows of fields that client ranks share.

    Where a block is as it is kept and the slots lie side by side, the bytes go straight into the rows. A step with a
    ragged field comes alone, and its length is noted in the store. Returns whether all values are known to be finite:
    they are looked at here, while they are in the processor's cache.

    Raises:
        Unfit: a frame too few or too many, of a wrong size, or with a wrong checksum.
    """
    num, crc, finite = len(slots) if kept is None else len(kept), 0, True
    rows = side_by_side(slots)
    for place in places:
        if not payload.more():
            raise Unfit(Reason.MALFORMED, f"no payload came for field {place.field}")
        array = store.arrays[place.field]
        if place.shared:
            assert keep is not None
            frame = payload.frame()
            _check_rows(place, frame.nbytes)
            if checksum is not None:
                crc = zlib.crc32(frame, crc)
            values = np.frombuffer(frame, place.wire).reshape(-1, *place.count[1:])
            keep(place, values.astype(array.dtype))
        elif place.row_bytes:
            content = _receive_rows(array, place, slots[0], payload)
            values = _set_rows(store, place, slots[0], content)
            if checksum is not None:
                crc = zlib.crc32(content, crc)
            finite = finite and (place.direct or np.can_cast(place.wire, array.dtype, "safe"))
        elif place.direct and rows is not None and kept is None:
            values = array[rows]
            _check_size(place, payload.into(values), values.nbytes)
            if checksum is not None:
                crc = zlib.crc32(values.data, crc)
        else:
            frame = payload.frame()
            _check_size(place, frame.nbytes, num * place.num_bytes)
            if checksum is not None:
                crc = zlib.crc32(frame, crc)
            values = np.frombuffer(frame, place.wire).reshape(num, *place.count)
            index: Index = (list(slots) if rows is None else rows, *place.slices)
            array[index] = values if kept is None else values[list(kept)]
            finite = finite and (place.direct or np.can_cast(place.wire, array.dtype, "safe"))
        finite = finite and all_finite(values)
    _check_end(payload, crc, checksum)
    return finite


def _receive_rows(array: Array, place: Place, slot: int, payload: Payload) -> memoryview:
    """The bytes of all rows of a step, received into the slot if they are as they are kept."""
    if not place.direct:
        frame = payload.frame()
        _check_rows(place, frame.nbytes)
        return frame
    memory: npt.NDArray[np.uint8] = array[slot].reshape(-1).view(np.uint8)
    num_bytes = payload.into(memory)
    _check_rows(place, num_bytes)
    return memory.data[:num_bytes]


def _set_rows(store: Slots, place: Place, slot: int, content: memoryview) -> Array:
    """Keep the rows of a step in the slot, and their number; gives them as they came."""
    values = np.frombuffer(content, place.wire).reshape(-1, *place.count[1:])
    if not place.direct:
        store.arrays[place.field][slot, : len(values)] = values
    store.lengths[place.field][slot] = len(values)
    return values


def put_rows_together(store: Slots, slot: int, rows: SharedRows) -> None:
    """Put the rows of ragged fields that client ranks sent of a step into its slot, in the order of the ranks."""
    num_rows: Counter[str] = Counter()
    for name, rank in sorted(rows):
        of_rank, num = rows[name, rank]
        start = num_rows[name]
        store.arrays[name][slot, start : start + num] = of_rank[:num]
        num_rows[name] += num
    for name, num in num_rows.items():
        store.lengths[name][slot] = num


def fill_shared_part(rows: SharedRows, array: Array, place: Place, rank: int, data: Data, payload: Payload) -> int:
    """Receive one part of the rows that a client rank sends of a field; gives its bytes. `array` is that of the field.

    Raises:
        Unfit: as for `fill_steps`.
    """
    key = place.field, rank
    of_rank = rows[key][0] if data.offset else np.empty(place.count, array.dtype)
    num_bytes = fill_part(of_rank[np.newaxis], place, data, 0, payload)
    keep_rows(rows, place, rank, of_rank, (data.offset + num_bytes) // place.row_bytes)
    return num_bytes


def keep_rows(rows: SharedRows, place: Place, rank: int, of_rank: Array, num: int) -> None:
    """Keep the first `num` rows of an array that a client rank sent, until those of the others are there.

    Raises:
        Unfit: with those of the others they are more than the field may have.
    """
    rows[place.field, rank] = of_rank, num
    total = sum(num for (name, _), (_, num) in rows.items() if name == place.field)
    if total > place.count[0]:
        text = f"the client ranks send {counted(total, 'row')} of field {place.field} in a time step"
        raise Unfit(Reason.WRONG_FIELDS, f'{text}, and study.json allows {place.count[0]}: raise its "max" there')


def fill_part(array: Array, place: Place, data: Data, slot: int, payload: Payload) -> int:
    """Receive one part of one block into a row of the array of its field; gives its bytes.

    A part is as large as it may be, or the last of its block; of a ragged field the number of rows follows from it.

    Raises:
        Unfit: as for `fill_steps`.
    """
    if not payload.more():
        raise Unfit(Reason.MALFORMED, f"no payload came for field {place.field}")
    most = min(place.num_bytes - data.offset, MAX_PART_BYTES)
    if place.direct:
        part = array[slot : slot + 1].reshape(-1).view(np.uint8)[data.offset : data.offset + most]
        num_bytes = payload.into(part)
        _check_part(place, num_bytes, most)
        crc = 0 if data.checksum is None else zlib.crc32(part.data[:num_bytes])
    else:
        frame = payload.frame()
        num_bytes = frame.nbytes
        _check_part(place, num_bytes, most)
        crc = 0 if data.checksum is None else zlib.crc32(frame)
        values = np.frombuffer(frame, place.wire)
        index: Index = (slot, *place.slices, ...)
        assign(array[index], data.offset // place.wire.itemsize, values)
    _check_end(payload, crc, data.checksum)
    return num_bytes


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
    if values.size <= MAX_SQUARED and values.dtype.char in "fd" and isfinite(np.vdot(values, values)):
        return True
    return values.dtype.kind not in "fc" or bool(np.logical_and.reduce(np.isfinite(values), axis=None))


def _check_rows(place: Place, num_bytes: int) -> None:
    if not place.fits(num_bytes):
        most = f"at most {place.count[0]} rows of {place.row_bytes} bytes"
        raise Unfit(Reason.MALFORMED, f"field {place.field} came with {num_bytes} bytes where {most} were expected")


def _check_part(place: Place, found: int, most: int) -> None:
    if place.row_bytes and found <= most and found % place.wire.itemsize == 0:
        return
    _check_size(place, found, most)


def _check_size(place: Place, found: int, expected: int) -> None:
    if found != expected:
        raise Unfit(Reason.MALFORMED, f"field {place.field} came with {found} bytes where {expected} were expected")


def _check_end(payload: Payload, crc: int, checksum: int | None) -> None:
    if payload.more():
        raise Unfit(Reason.MALFORMED, "more payload came than the header says")
    if checksum is not None and crc != checksum:
        raise Unfit(Reason.CHECKSUM, "the payload does not fit its checksum: it was changed on the way")
