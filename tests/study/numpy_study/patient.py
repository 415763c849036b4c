"""The same simulation, but `python patient.py FILE` waits after half of its steps until there is such a file."""

import sys
import time
from pathlib import Path

from ripple import NUM_STEPS, ripple

from stream_server.client_api import connect

with connect() as simulation:
    for time_step, signal in enumerate(ripple(simulation.parameters)):
        if not simulation.send(time_step, signal=signal):
            break
        if time_step == NUM_STEPS // 2:
            print("waiting", flush=True)
            while not Path(sys.argv[1]).exists():
                time.sleep(0.01)
