"""A simulation whose time step takes as long as its first argument says, in seconds."""

import sys
import time

from payload import wave

from stream_server.client_api import connect

with connect() as simulation:
    for time_step in simulation.time_steps:
        time.sleep(float(sys.argv[1]))
        if not simulation.send(time_step, wave=wave(simulation.id, time_step)):
            break
