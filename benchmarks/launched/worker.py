"""Sends five time steps of each simulation that it is given, and computes nothing."""

import numpy as np

from stream_server.client_api import simulations

for simulation in simulations():
    for step in range(5):
        simulation.send(step, u=np.full(8, simulation.parameters["a"]))
