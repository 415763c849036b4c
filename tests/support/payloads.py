"""The sizes of payloads, as docs/reference/protocol.md gives them."""

from collections.abc import Collection, Sequence

from stream_server.errors import MalformedMessage
from stream_server.messages.client import ALL_FIELDS, MAX_PART_BYTES, Block, Data
from stream_server.messages.wire import block_bytes


def payload_sizes(data: Data, blocks: Sequence[Block]) -> tuple[int, ...]:
    """Bytes that each payload frame of `data` must have, for a client rank that opened with `blocks`.

    Raises:
        MalformedMessage: `data` names a block that is not there, or more bytes than one message may carry.
    """
    if data.present >> len(blocks):
        raise MalformedMessage(f"present is {data.present:#x}, but only {len(blocks)} blocks are open")
    if data.field != ALL_FIELDS:
        left = block_bytes(blocks[data.field]) - data.offset
        if left <= 0:
            raise MalformedMessage(f"byte {data.offset} is outside of block {data.field}")
        return (min(left, MAX_PART_BYTES),)
    sizes = tuple(data.num_steps * block_bytes(block) for block in _brought(data, blocks))
    if not data.in_segment:
        _check_total(sizes)
    return sizes


def check_payload(data: Data, blocks: Sequence[Block], payload: Sequence[bytes], ragged: Collection[str]) -> None:
    """Assert that the payload of a message is what these blocks have; those of `ragged` fields have any number of rows.

    Raises:
        MalformedMessage: as for `payload_sizes`.
    """
    found = tuple(map(len, payload))
    brought = _brought(data, blocks)
    if not any(block.field in ragged for block in brought):
        assert found == payload_sizes(data, blocks)
        return
    assert data.num_steps == 1
    _check_total(found)
    for block, size in zip(brought, found, strict=True):
        most = block_bytes(block)
        if data.field != ALL_FIELDS:
            assert 0 < size <= most - data.offset
        elif block.field in ragged:
            assert size <= most
            assert size % (most // block.count[0]) == 0
        else:
            assert size == most


def _brought(data: Data, blocks: Sequence[Block]) -> list[Block]:
    if data.field != ALL_FIELDS:
        return [blocks[data.field]]
    return [block for i, block in enumerate(blocks) if data.present >> i & 1]


def _check_total(sizes: Sequence[int]) -> None:
    if sum(sizes) > MAX_PART_BYTES:
        raise MalformedMessage(f"{sum(sizes)} bytes in one message, more than {MAX_PART_BYTES}")
