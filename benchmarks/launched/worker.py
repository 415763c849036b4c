"""Sends as many time steps of each simulation as the first argument says; a second one is the name of its node."""

import socket
import sys

import numpy as np

from stream_server.client_api import simulations

num_steps = int(sys.argv[1])
if len(sys.argv) > 2:
    socket.gethostname = lambda: sys.argv[2]
for simulation in simulations():
    for step in range(num_steps):
        simulation.send(step, u=np.full(8, simulation.parameters["a"]))
