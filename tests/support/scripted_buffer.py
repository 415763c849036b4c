"""A training from a buffer that fills in bursts, under a clock that is wound by hand."""

import numpy as np

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.pins import Draw
from stream_server.buffers.slots import Slots
from stream_server.errors import Closed
from stream_server.server.training.buffer_times import BufferTimes
from tests.support.timing import Clock

BATCH = 10
STEP_S = 0.5
TICK_S = 0.05
# Steps that may be under way while there is no room.
CREDIT = 2


class ScriptedRun:
    """Simulations that compute for a while and then send a burst, as far as there is room, and a training.

    They compute on once all has been sent. A batch of 10 samples takes the training half a second.
    """

    def __init__(self, *, capacity: int, burst: int, compute_s: float, num_bursts: int) -> None:
        self.clock = Clock()
        self.times = BufferTimes(self.clock)
        self._burst = burst
        self._compute_s = compute_s
        self._num_left = num_bursts
        self._num_to_send = 0
        self._next_s = compute_s
        slots = Slots({"u": ()}, capacity + CREDIT + BATCH)
        slots.allocate({"u": np.float64})
        self.buffer = _WaitingBuffer(self, Fifo(capacity=capacity), slots)

    def train(self) -> BufferTimes:
        """Train until nothing comes any more and all is drawn; `clock.now` is the time that it took."""
        while True:
            try:
                draw = self.times.draw(self.buffer, BATCH, 1.0)
            except Closed:
                return self.times
            assert draw is not None
            self.buffer.release(draw)
            self.pass_time(STEP_S)

    def pass_time(self, seconds: float) -> None:
        """Let the simulations go on for some time."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.now += TICK_S
            self._go_on()

    def _go_on(self) -> None:
        if self._num_left and not self._num_to_send and self.clock.now >= self._next_s:
            self._num_left -= 1
            self._num_to_send = self._burst
        self.buffer.admit()
        while self._num_to_send and self.buffer.num_waiting < CREDIT:
            self.buffer.enqueue(self.buffer.claim(1))
            self.buffer.admit()
            self._num_to_send -= 1
            self._next_s = self.clock.now + self._compute_s
        if not self._num_left and not self._num_to_send and not self.buffer.num_waiting:
            self.buffer.close()


class _WaitingBuffer(Buffer):
    def __init__(self, run: ScriptedRun, policy: Fifo, slots: Slots) -> None:
        super().__init__(policy, slots)
        self._run = run

    def draw(self, num: int, timeout_s: float) -> Draw | None:
        while (draw := super().draw(num, 0.0)) is None:
            self._run.pass_time(TICK_S)
        return draw
