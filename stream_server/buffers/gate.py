"""The gate between the threads that fill a buffer and draw from it."""

from collections.abc import Callable
from threading import Condition, Lock

from stream_server.errors import Closed, ProducerFailed


class Gate:
    """Holds the training thread until a batch can be drawn, or nothing comes any more.

    All methods are called under `lock`, which a wait releases meanwhile. `ready` says how large a batch can be drawn
    when `num` samples are wanted, 0 if none can.

    Attributes:
        closed: nothing comes any more.
        error: why, if that is because the thread that fills the buffer failed.
    """

    def __init__(self, lock: Lock, ready: Callable[[int], int]) -> None:
        self.closed = False
        self.error: BaseException | None = None
        self._ready = ready
        self._changed = Condition(lock)
        self._wanted = 0

    def wait(self, num: int, timeout_s: float) -> int:
        """Wait until a batch of `num` samples can be drawn; returns its size, 0 when the time is over.

        Raises:
            Closed: nothing comes any more, and everything was drawn.
            ProducerFailed: the gate was closed with an error, which is the cause.
        """
        if size := self._size(num):
            return size
        self._wanted = num
        try:
            return self._changed.wait_for(lambda: self._size(num), timeout_s)
        finally:
            self._wanted = 0

    def wake_if_ready(self) -> None:
        """Wake the thread that waits, if it can draw now."""
        # Not at each change: a wake-up for nothing costs the receiver the interpreter lock each time.
        if self._wanted and self._ready(self._wanted):
            self._changed.notify()

    def close(self) -> None:
        """Say that nothing comes any more."""
        self.closed = True
        self._changed.notify_all()

    def _size(self, num: int) -> int:
        if self.error:
            raise ProducerFailed("The thread that fills the buffer failed.") from self.error
        size = self._ready(num)
        if not size and self.closed:
            raise Closed("The buffer is closed and everything in it was drawn.")
        return size
