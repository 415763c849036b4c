"""How fast batches leave the buffer, against gathering random rows from one preallocated array.

The reference is the limit of drawing: choose random row numbers and copy these rows with `np.take(out=)`.
`draw.batch` is the vectorised path: draw from the Reservoir (distinct rows, gate, pinning, seen counts), gather all
rows at once, release. `draw.sample` is the path of a per-sample `process_simulation_data`: one view per sample, then
a stack. `draw.window` draws windows of 5 consecutive steps and gathers the rows of their steps; the reference copies
random windows from one array.

    python -m benchmarks.draw
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Result, alternated, cpu_rate, show
from stream_server.buffers import Buffer, Reservoir, Slots, WindowBuffer, WindowShape

BUFFER_BYTES = 256 * 1024 * 1024
SAMPLE_BYTES = {"4kB": 4_000, "40kB": 40_000}
BATCH_SIZES = (32, 256)
WINDOW = WindowShape(length=5)


def results() -> Iterator[Result]:
    """draw.{batch,sample,window}.{4kB,40kB}.{32,256}, in rows per second of CPU time; a window has 5 rows."""
    for path, ours in (("batch", DrawnAtOnce), ("sample", DrawnSingly)):
        for size, num, buffer in _cases():
            yield alternated(
                f"draw.{path}.{size}.{num}",
                "rows/s",
                cpu_rate(ours(buffer, num).step, num),
                cpu_rate(Gathered(buffer, num).step, num),
            )

    for size, sample_bytes in SAMPLE_BYTES.items():
        windows = filled_with_windows(sample_bytes)
        for num in BATCH_SIZES:
            num_rows = num * WINDOW.length
            yield alternated(
                f"draw.window.{size}.{num}",
                "rows/s",
                cpu_rate(DrawnWindows(windows, num).step, num_rows),
                cpu_rate(GatheredWindows(windows, num).step, num_rows),
            )


def filled_with_windows(sample_bytes: int) -> WindowBuffer:
    """A full Reservoir of all windows of one simulation."""
    num_steps = BUFFER_BYTES // sample_bytes
    slots = Slots({"field": (sample_bytes // 4,)}, num_steps)
    slots.allocate({"field": np.float32})
    slots.arrays["field"][:] = 1
    policy = Reservoir(capacity=num_steps - WINDOW.span, watermark=1, seed=1)
    buffer = WindowBuffer(policy, slots, shape=WINDOW, most_kept=num_steps)
    claimed = buffer.claim(num_steps)
    slots.time_steps[claimed] = np.arange(num_steps)
    slots.simulation_ids[claimed] = 0
    buffer.enqueue(claimed)
    buffer.admit()
    return buffer


def filled_buffer(sample_bytes: int) -> Buffer:
    """A full Reservoir of one float32 field."""
    capacity = BUFFER_BYTES // sample_bytes
    slots = Slots({"field": (sample_bytes // 4,)}, capacity)
    slots.allocate({"field": np.float32})
    slots.arrays["field"][:] = 1
    buffer = Buffer(Reservoir(capacity=capacity, watermark=1, seed=1), slots)
    buffer.enqueue(buffer.claim(capacity))
    buffer.admit()
    return buffer


class Gathered:
    """The reference: random rows of one array, copied into another."""

    def __init__(self, buffer: Buffer, num: int) -> None:
        self._array = buffer.slots.arrays["field"]
        self._num = num
        self._out = np.empty((num, *self._array.shape[1:]), self._array.dtype)
        self._random = np.random.default_rng(1)

    def step(self) -> npt.NDArray[np.float32]:
        rows = self._random.integers(len(self._array), size=self._num)
        return self._array.take(rows, 0, self._out, "clip")


class DrawnAtOnce:
    """Draw, gather the rows in one call, release."""

    def __init__(self, buffer: Buffer, num: int) -> None:
        self._buffer = buffer
        self._num = num
        self._out = buffer.slots.gather(np.arange(num))

    def step(self) -> None:
        draw = self._buffer.draw(self._num, timeout_s=1.0)
        assert draw is not None
        self._buffer.slots.gather(draw.slots, self._out)
        self._buffer.release(draw)


class DrawnSingly:
    """Draw, take one read-only view per sample, stack the views, release."""

    def __init__(self, buffer: Buffer, num: int) -> None:
        self._buffer = buffer
        self._num = num
        self._out = buffer.slots.gather(np.arange(num))["field"]
        self._array = buffer.slots.arrays["field"].view()
        self._array.flags.writeable = False

    def step(self) -> None:
        draw = self._buffer.draw(self._num, timeout_s=1.0)
        assert draw is not None
        np.stack([self._array[slot] for slot in draw.slots.tolist()], out=self._out)
        self._buffer.release(draw)


class GatheredWindows:
    """The reference: random windows of one array, copied into another."""

    def __init__(self, buffer: WindowBuffer, num: int) -> None:
        self._array = buffer.slots.arrays["field"]
        self._num = num
        self._out = np.empty((num, WINDOW.length, *self._array.shape[1:]), self._array.dtype)
        self._random = np.random.default_rng(1)

    def step(self) -> npt.NDArray[np.float32]:
        starts = self._random.integers(len(self._array) - WINDOW.span, size=self._num)
        return self._array.take(starts[:, None] + np.arange(WINDOW.length), 0, self._out, "clip")


class DrawnWindows:
    """Draw windows, gather the rows of their steps in one call, release."""

    def __init__(self, buffer: WindowBuffer, num: int) -> None:
        self._buffer = buffer
        self._num = num
        self._out = buffer.slots.gather(buffer.rows_of(buffer.policy.slots()[:num]))

    def step(self) -> None:
        draw = self._buffer.draw(self._num, timeout_s=1.0)
        assert draw is not None
        self._buffer.gather(draw, self._out)
        self._buffer.release(draw)


def _cases() -> Iterator[tuple[str, int, Buffer]]:
    for size, sample_bytes in SAMPLE_BYTES.items():
        buffer = filled_buffer(sample_bytes)
        for num in BATCH_SIZES:
            yield size, num, buffer


if __name__ == "__main__":
    show(results())
