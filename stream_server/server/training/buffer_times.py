"""The times for which a buffer was full, and for which draws from it waited."""

import time
from collections.abc import Callable

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.errors import Closed

# Without a wait a draw takes less, also where it has to wait for the interpreter.
SHORTEST_WAIT_S = 0.01
COUNTS = ("open_s", "waited_s", "full_s", "num_first", "num_turns")


class BufferTimes:
    """Counts from the first draw until nothing comes any more: seconds in all, of waits for samples, and of fullness.

    A buffer counts as full from one draw to the next if before that some time step waits for room. `num_first` samples
    were drawn for the first time, and `num_turns` times training waited after the buffer was full. Training thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._was_full = False
        self._since_s: float | None = None
        self._clock = clock

    def draw(self, buffer: Buffer, num: int, timeout_s: float) -> Draw | None:
        """Draw from the buffer, and count."""
        is_full, began_s = bool(buffer.num_waiting) and not buffer.room, self._clock()
        try:
            draw = buffer.draw(num, timeout_s)
        except Closed:
            # Until the next round of `study.rounds` nothing can come.
            self._since_s, self._was_full = None, False
            raise
        now_s, since_s = self._clock(), self._since_s
        if since_s is not None and not buffer.is_closed:
            counts = self.counts
            counts["open_s"] += now_s - since_s
            counts["waited_s"] += now_s - began_s
            counts["num_first"] += 0 if draw is None else draw.num_first
            if is_full:
                counts["full_s"] += began_s - since_s
                self._was_full = True
            if self._was_full and now_s - began_s >= SHORTEST_WAIT_S:
                counts["num_turns"] += 1
                self._was_full = False
        if draw is not None or since_s is not None:
            self._since_s = now_s
        return draw
