"""Copies of rows of an array, by several threads where there is much to copy.

Why: docs/decisions/0029-gathering-and-copies.md
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.policy import SlotArray

# One thread copies 6 GB/s from rows in random order, eight of them 26, for batches of 40 MB; 4 MB took as long by both.
PARALLEL_BYTES = 16 * 1024 * 1024
MAX_THREADS = 8

Take = Callable[[NDArray[Any], SlotArray, NDArray[Any]], NDArray[Any]]


def take(array: NDArray[Any], rows: SlotArray, out: NDArray[Any]) -> NDArray[Any]:
    """Copy rows of `array` into `out`, which has room for just these, and give it."""
    # mode="clip" lets NumPy write into `out` directly; "raise" would copy once more.
    return array.take(rows, 0, out, "clip")


class RowCopies:
    """Does what `take` does, with up to `num_threads` threads, which begin with the first batch that is large enough.

    NumPy copies rows without holding the interpreter. It belongs to one thread.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = min(num_threads, MAX_THREADS)
        self._pool: ThreadPoolExecutor | None = None

    def take(self, array: NDArray[Any], rows: SlotArray, out: NDArray[Any]) -> NDArray[Any]:
        if self._num_threads < 2 or out.nbytes < PARALLEL_BYTES:
            return array.take(rows, 0, out, "clip")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "gather")
        parts = zip(np.array_split(rows, self._num_threads), np.array_split(out, self._num_threads), strict=True)
        for copied in [self._pool.submit(take, array, *part) for part in parts]:
            copied.result()
        return out

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
