"""Sends a field of 64 × 64 numbers at 400 time steps, or every window of LENGTH of them: simulation.py [LENGTH].

Writes the CPU time that it has taken since it connected, libzmq's threads included, into cpu.txt.
"""

import sys
import time
from pathlib import Path

import numpy as np

from stream_server.client_api import connect

NUM_STEPS = 400
SHAPE = (64, 64)

length = int(sys.argv[1]) if len(sys.argv) > 1 else None
states = np.random.default_rng(0).random((NUM_STEPS, *SHAPE), np.float32)
with connect() as simulation:
    start_s = time.process_time()
    if length is None:
        for step in range(NUM_STEPS):
            simulation.send(step, u=states[step])
    else:
        for first in range(NUM_STEPS - length + 1):
            simulation.send(first, u=states[first : first + length])
Path("cpu.txt").write_text(str(time.process_time() - start_s))
