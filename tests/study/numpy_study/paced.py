"""The same simulation, of which every time step takes as long as `python paced.py SECONDS` says."""

import sys
import time

from ripple import ripple

from stream_server.client_api import connect

with connect() as simulation:
    for time_step, signal in enumerate(ripple(simulation.parameters)):
        time.sleep(float(sys.argv[1]))
        if not simulation.send(time_step, signal=signal):
            break
