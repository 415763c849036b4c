"""One simulation of the study. `STREAM_CONNECTION=none python simulation.py` runs it alone."""

import numpy as np

from stream_server.client_api import connect

NUM_STEPS = 50
NUM_NODES = 64


def solve(amplitude, rate):
    """Yield the field after each time step. This is the place of your solver."""
    x = np.linspace(0, 2 * np.pi, NUM_NODES)
    for step in range(NUM_STEPS):
        yield amplitude * np.exp(-rate * step / NUM_STEPS) * np.sin(x)


with connect() as simulation:
    # Without a study there are no parameters.
    parameters = simulation.parameters or {"amplitude": 1.0, "rate": 1.0}
    for step, u in enumerate(solve(**parameters)):
        if not simulation.send(step, u=u):
            break  # the study needs no more
