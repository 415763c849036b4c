"""The payload of a sample: a function of its simulation and time step, and of nothing else."""

import numpy as np

PLACES = np.arange(256)
STEPS = 256


def wave(simulation_id, time_step):
    """256 whole numbers that tell simulation, time step and place, exactly even in single precision."""
    return (simulation_id * STEPS + time_step) * 256.0 + PLACES
