"""Attaches as many simulations as its first argument says, which are all live at once, and sends five steps of each.

The second one is the name of its node. It prints when all were open and when all had ended, in seconds.
"""

import resource
import socket
import sys
import time

import numpy as np

from stream_server.client_api import connect

num, node = int(sys.argv[1]), sys.argv[2]
socket.gethostname = lambda: node
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
started = time.monotonic()
simulations = [connect() for _ in range(num)]
print(time.monotonic() - started, flush=True)
for step in range(5):
    for simulation in simulations:
        simulation.send(step, u=np.full(8, simulation.parameters["a"]))
for simulation in simulations:
    simulation.finish()
print(time.monotonic() - started)
