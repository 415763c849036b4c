"""Sends five time steps of each simulation that it is given, and computes nothing; an argument is its node's name."""

import socket
import sys

import numpy as np

from stream_server.client_api import simulations

if len(sys.argv) > 1:
    socket.gethostname = lambda: sys.argv[1]
for simulation in simulations():
    for step in range(5):
        simulation.send(step, u=np.full(8, simulation.parameters["a"]))
