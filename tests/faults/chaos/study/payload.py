"""The payload of a sample: a function of its simulation and time step, and of nothing else."""

import numpy as np

PLACES = np.arange(256)
STEPS = 256


def wave(simulation_id, time_step):
    """256 whole numbers that tell simulation, time step and place, exactly even in single precision."""
    return (simulation_id * STEPS + time_step) * 256.0 + PLACES


def volume(simulation_id, time_step):
    """A field of 64 kB: the wave in each of 64 rows."""
    return np.tile(wave(simulation_id, time_step).astype(np.float32), (64, 1))


def mesh(simulation_id):
    """A field that a simulation sends once."""
    return simulation_id + PLACES[:8] / 8


def edges(simulation_id):
    """A field that a simulation sends once, of which each has another number of rows, perhaps none."""
    return np.full(simulation_id % 7, simulation_id, np.float64)


def particles(simulation_id, time_step):
    """A field of which each time step has another number of rows, perhaps none."""
    return np.full((simulation_id + time_step) % 5, simulation_id * STEPS + time_step, np.float64)
