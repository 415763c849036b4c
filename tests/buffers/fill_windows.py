"""Fills a reservoir of windows, and prints its resident memory over that of the steps that it held at most."""

import re
from pathlib import Path

import numpy as np

from stream_server.buffers import Reservoir, Slots, WindowBuffer, WindowShape

NUM_VALUES = 4000
CAPACITY = 1000
SHAPE = WindowShape(length=5)
NUM_SIMULATIONS, NUM_STEPS, AT_ONCE, BATCH_SIZE = 16, 250, 4, 32


def resident_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def main() -> None:
    before = resident_bytes()
    most_kept = 2 * AT_ONCE * SHAPE.span
    slots = Slots({"u": (NUM_VALUES,)}, CAPACITY * SHAPE.length + most_kept + AT_ONCE)
    slots.allocate({"u": np.float32})
    policy = Reservoir(capacity=CAPACITY, watermark=BATCH_SIZE, seed=1)
    buffer = WindowBuffer(policy, slots, shape=SHAPE, most_kept=most_kept)
    most = 0
    for first in range(0, NUM_SIMULATIONS, AT_ONCE):
        for step in range(NUM_STEPS):
            claimed = buffer.claim(AT_ONCE)
            slots.simulation_ids[claimed] = range(first, first + AT_ONCE)
            slots.time_steps[claimed] = step
            slots.arrays["u"][claimed] = step
            buffer.enqueue(claimed)
            assert len(buffer.admit()) == AT_ONCE
            assert buffer.windows is not None
            most = max(most, buffer.windows.num_used)
            draw = buffer.draw(BATCH_SIZE, 0.0)
            if draw is not None:
                buffer.release(draw)
        buffer.end(range(first, first + AT_ONCE))
    print(most, (resident_bytes() - before) / (most * NUM_VALUES * 4))


if __name__ == "__main__":
    main()
