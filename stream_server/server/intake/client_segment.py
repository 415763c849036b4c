"""The memory of a client on this node, in which whole steps lie that its messages only point to.

Receiver thread.

Why: docs/decisions/0103-steps-in-shared-memory.md
"""

import os
import resource
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import Reason, SegmentOffer
from stream_server.messages.wire import OFFSET
from stream_server.server.intake.filling import Payload, Unfit

LINK = "/memfd:stream-server (deleted)"


class ClientSegment:
    """A memfd of a client, open for reading. It is not mapped: one that the client cuts off could end this process."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        self._num_bytes = num_bytes

    @classmethod
    def open(cls, offer: SegmentOffer) -> "ClientSegment | None":
        """The segment that a client offers; None if it is not to be had here, or is not what the client says."""
        path = f"/proc/{offer.pid}/fd/{offer.descriptor}"
        with suppress(OSError), ExitStack() as stack:
            if os.readlink(path) == LINK:
                # It may be a pipe or a terminal by now.
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
                stack.callback(os.close, descriptor)
                if _may_be_read(descriptor, offer):
                    stack.pop_all()
                    return cls(descriptor, offer.bytes)
        return None

    def close(self) -> None:
        os.close(self._descriptor)

    def payload(self, message: Payload, sizes: Sequence[int]) -> Payload:
        """The blocks of these sizes that lie where a message says.

        Raises:
            Unfit: it says it in another way, or they would reach out of the segment.
        """
        offset = bytes(message.frame()) if message.more() else b""
        if len(offset) != OFFSET.size or message.more():
            raise Unfit(Reason.MALFORMED, f"steps in a segment come with one frame: their offset, {OFFSET.size} bytes")
        [start] = OFFSET.unpack(offset)
        if start + sum(sizes) > self._num_bytes:
            text = f"{sum(sizes)} bytes from {start} on are not within the {self._num_bytes} of the segment"
            raise Unfit(Reason.MALFORMED, text)
        return SegmentPayload(self._descriptor, start, sizes)


class SegmentPayload:
    """Blocks that lie one behind the other in a segment; see `filling.Payload`."""

    def __init__(self, descriptor: int, start: int, sizes: Sequence[int]) -> None:
        self._descriptor = descriptor
        self._start = start
        self._sizes = sizes
        self._num_read = 0

    def more(self) -> bool:
        return self._num_read < len(self._sizes)

    def into(self, buffer: npt.NDArray[np.generic], /) -> int:
        memory, num = buffer.reshape(-1).view(np.uint8).data, 0
        try:
            # No call reads more than 2 GiB.
            while num < len(memory) and (part := os.preadv(self._descriptor, [memory[num:]], self._start + num)):
                num += part
        except OSError as error:
            raise Unfit(Reason.MALFORMED, f"the client's memory cannot be read: {error.strerror}") from error
        self._start += self._sizes[self._num_read]
        self._num_read += 1
        return num

    def frame(self) -> memoryview:
        block = np.empty(self._sizes[self._num_read], np.uint8)
        return block[: self.into(block)].data


def _may_be_read(descriptor: int, offer: SegmentOffer) -> bool:
    # The rest is for connections, without which ZeroMQ would end the process.
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and descriptor >= most // 4:
        return False
    status, token = os.fstat(descriptor), bytes.fromhex(offer.token)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_ours and status.st_size >= offer.bytes and os.pread(descriptor, len(token), 0) == token
