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


class RetentionSegment:
    """A memfd of this process, cut into blocks of one message each; `offer` is what a server must know to read it.

    A block is free again when nothing refers to its memory any more. The lowest that is large enough is taken, so that
    no more memory is used than was needed at one time.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._memory = mmap.mmap(descriptor, num_bytes)
        self._descriptor = descriptor
        # Where each free part begins and ends, in their order.
        self._free = [(HEAD_BYTES, num_bytes)]
        # A block may be released while the list of free ones is changed.
        self._released: deque[tuple[int, int]] = deque()
        token = secrets.token_bytes(16)
        os.pwrite(descriptor, token, 0)
        self.offer = SegmentOffer(pid=os.getpid(), descriptor=descriptor, bytes=num_bytes, token=token.hex())
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False

    @classmethod
    def make(cls, num_bytes: int) -> "RetentionSegment | None":
        """A segment with room for so many bytes; None where the system, or a limit of this process, refuses it."""
        num_bytes += HEAD_BYTES
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        # Beyond it the kernel would send a signal that may end this process. Addresses that are limited are left to
        # those who need them.
        has_addresses = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
        if not has_addresses or (most != resource.RLIM_INFINITY and most < num_bytes):
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
        """Store nothing more, and let no further server open it. What is stored stays as long as it is referred to."""
        self._close()
        del self._memory

    def store(self, arrays: Sequence[np.ndarray]) -> tuple[int, list[memoryview]] | None:
        """Copy contiguous arrays one behind the other; gives where the first begins, and the bytes of each.

        None: there is no room, in the segment or in the machine.
        """
        num_bytes = sum(array.nbytes for array in arrays)
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        start = self._allocate(size)
        if start is None:
            return None
        block = np.frombuffer(self._memory, np.uint8, num_bytes, start)
        weakref.finalize(block, self._released.append, (start, start + size)).atexit = False
        try:
            # Where the machine is short of memory this fails, and a write to the mapping would be a signal. It also
            # saves a fault for each page.
            if os.pwritev(self._descriptor, [array.data for array in arrays], start) < num_bytes:
                return None
        except OSError:
            return None
        pieces, at = [], 0
        for array in arrays:
            pieces.append(block[at : at + array.nbytes].data)
            at += array.nbytes
        return start, pieces

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
