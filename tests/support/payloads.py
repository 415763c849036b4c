"""The sizes of payloads, as docs/reference/protocol.md gives them."""

from collections.abc import Sequence

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
    sizes = tuple(data.num_steps * block_bytes(block) for i, block in enumerate(blocks) if data.present >> i & 1)
    if sum(sizes) > MAX_PART_BYTES:
        raise MalformedMessage(f"{sum(sizes)} bytes in one message, more than {MAX_PART_BYTES}")
    return sizes
