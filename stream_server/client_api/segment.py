"""Memory for sent steps that a server on the same node reads: only their place in it goes through the socket.

Why: docs/decisions/0103-steps-in-shared-memory.md
"""

import mmap
import os
import resource
import secrets
import weakref
from bisect import bisect
from collections import deque
from collections.abc import Sequence

import numpy as np

from stream_server.messages.client import SegmentOffer

NAME = "stream-server"
HEAD_BYTES = mmap.PAGESIZE
# The kernel maps so much at once where it is read first, and page by page where it is written first.
MAPPED_AT_ONCE_BYTES = 64 * 1024


class Segment:
    """A memfd of this process, cut into blocks of one message each; `offer` is what a server must know to read it.

    A block is free again when nothing refers to its memory any more. The lowest that is large enough is taken, so that
    no more memory is used than was needed at one time.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._memory = mmap.mmap(descriptor, num_bytes)
        self._descriptor = descriptor
        # The first and last byte of each free part, in their order. Others may be released while it is changed.
        self._free = [(HEAD_BYTES, num_bytes)]
        self._released: deque[tuple[int, int]] = deque()
        self._first_unused = HEAD_BYTES
        token = secrets.token_bytes(16)
        os.pwrite(descriptor, token, 0)
        self.offer = SegmentOffer(pid=os.getpid(), descriptor=descriptor, bytes=num_bytes, token=token.hex())
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def make(cls, num_bytes: int) -> "Segment | None":
        """A segment with room for so many bytes; None where the system, or a limit of this process, refuses it."""
        num_bytes = HEAD_BYTES + _whole_pages(num_bytes)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        # Beyond it the kernel would send a signal that may end this process.
        if most != resource.RLIM_INFINITY and most < num_bytes:
            return None
        try:
            descriptor = os.memfd_create(NAME)
        except (AttributeError, OSError):
            return None
        try:
            os.ftruncate(descriptor, num_bytes)
            return cls(descriptor, num_bytes)
        except (OSError, ValueError, OverflowError):
            os.close(descriptor)
            return None

    def close(self) -> None:
        """Let no further server open it. What lies in it stays as long as anything refers to it."""
        self._close()

    def store(self, arrays: Sequence[np.ndarray]) -> tuple[int, list[memoryview]] | None:
        """Copy contiguous arrays one behind the other; gives where the first begins, and the bytes of each.

        None: there is no room, in the segment or in the machine.
        """
        ends = np.cumsum([array.nbytes for array in arrays])
        num_bytes = int(ends[-1])
        start = self._allocate(_whole_pages(num_bytes))
        if start is None:
            return None
        block = np.frombuffer(self._memory, np.uint8, num_bytes, start)
        end = start + _whole_pages(num_bytes)
        weakref.finalize(block, self._released.append, (start, end)).atexit = False
        pieces = np.split(block, ends[:-1])
        if end <= self._first_unused:
            for piece, array in zip(pieces, arrays, strict=True):
                piece[:] = array.reshape(-1).view(np.uint8)
        elif self._write_first(start, arrays) == num_bytes:
            self._first_unused = end
            block[::MAPPED_AT_ONCE_BYTES].max()
        else:
            return None
        return start, [piece.data for piece in pieces]

    def _write_first(self, start: int, arrays: Sequence[np.ndarray]) -> int:
        """Write to memory that the machine has yet to give: where it has none, by the mapping it would be a signal."""
        try:
            return os.pwritev(self._descriptor, [array.data for array in arrays], start)
        except OSError:
            return 0

    def _allocate(self, num_bytes: int) -> int | None:
        while self._released:
            self._join(*self._released.popleft())
        for i, (start, end) in enumerate(self._free):
            if end - start >= num_bytes:
                self._free[i] = (start + num_bytes, end)
                return start
        return None

    def _join(self, start: int, end: int) -> None:
        i = bisect(self._free, (start, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end))


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
