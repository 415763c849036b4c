"""A simulation without an end, of two hundred time steps a second."""

import itertools
import time

import numpy as np

from stream_server.client_api import connect

PLACES = np.linspace(0, 1, 1000, dtype=np.float32)

with connect() as simulation:
    for time_step in itertools.count():
        if not simulation.send(time_step, wave=np.sin(PLACES * time_step + simulation.parameters["phase"])):
            break
        time.sleep(0.005)
