"""Darcy's law in one dimension: pressure in a medium whose permeability differs from simulation to simulation."""

import numpy as np

from stream_server.client_api import connect

NUM_CELLS = 16
NUM_LOADS = 5


def coefficient_of(parameters):
    """The permeability in each cell, shape (NUM_CELLS,)."""
    x = (np.arange(NUM_CELLS) + 0.5) / NUM_CELLS
    return np.exp(parameters["first"] * np.cos(np.pi * x) + parameters["second"] * np.cos(2 * np.pi * x))


def pressure_of(coefficient, load):
    """The pressure at the nodes, shape (NUM_CELLS + 1,): zero at both ends, under a source that moves with `load`."""
    h = 1 / NUM_CELLS
    nodes = np.arange(1, NUM_CELLS) * h
    source = np.exp(-50 * (nodes - 0.1 - 0.2 * load) ** 2)
    left, right = coefficient[:-1], coefficient[1:]
    matrix = np.diag(left + right) - np.diag(right[:-1], 1) - np.diag(left[1:], -1)
    return np.concatenate([[0], np.linalg.solve(matrix / h**2, source), [0]])


if __name__ == "__main__":
    with connect() as simulation:
        coefficient = coefficient_of(simulation.parameters)
        simulation.send_static(coefficient=coefficient)
        for load in range(NUM_LOADS):
            if not simulation.send(load, pressure=pressure_of(coefficient, load)):
                break
