"""The same simulation, which attaches: `python attached.py CONNECTION TIMEOUT_S FILE` waits half-way for the file."""

import sys
import time
from pathlib import Path

from ripple import NUM_STEPS, ripple

from stream_server.client_api import connect

with connect(sys.argv[1], timeout_s=float(sys.argv[2])) as simulation:
    for time_step, signal in enumerate(ripple(simulation.parameters)):
        if time_step == NUM_STEPS // 2:
            print("half-way", flush=True)
            while not Path(sys.argv[3]).exists():
                time.sleep(0.01)
        if not simulation.send(time_step, signal=signal):
            break
print("my own result is complete")
