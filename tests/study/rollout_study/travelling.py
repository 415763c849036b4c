"""A wave that travels and decays, on a circle: each Fourier mode is known at any time."""

import numpy as np

from stream_server.client_api import connect

NUM_NODES = 32
NUM_STEPS = 12
MODES = np.arange(1, 4)


def field_at(time_step, parameters):
    """The field, shape (NUM_NODES,)."""
    x = 2 * np.pi * np.arange(NUM_NODES) / NUM_NODES
    amplitudes = np.array([1.0, parameters["second"], parameters["third"]]) * 0.99 ** (MODES * time_step)
    return np.sin(MODES[:, None] * (x - 0.3 * time_step)).T @ amplitudes


if __name__ == "__main__":
    with connect() as simulation:
        for time_step in range(NUM_STEPS):
            if not simulation.send(time_step, u=field_at(time_step, simulation.parameters)):
                break
