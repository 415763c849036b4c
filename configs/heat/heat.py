"""The heat equation on a square plate: one simulation of the ensemble.

u_t = D Δu on [0, 10]², D = 1, t ∈ [0, 1]. The plate starts at one temperature and each of its four sides
is kept at one. Space: N × N interior nodes, 5-point stencil. Time: backward Euler, 100 steps of 0.01.

Backward Euler asks for (I - dt D L) u_new = u + dt D boundary in every step. L is the sum of a second
difference along rows and one along columns, and the sine functions are the eigenvectors of both. In the
sine basis the system is diagonal, so a step is one division, and coming back to temperatures costs two
products with an N × N matrix. The answer is exact to rounding, and NumPy is all that is needed, so that a
simulation starts in a fraction of a second.
"""

import argparse

import numpy as np

from stream_server.client_api import connect

SIDE = 10.0
DIFFUSIVITY = 1.0
TIME_STEP = 0.01
NUM_STEPS = 100


def solve(*, size, initial, left, right, bottom, top):
    """Yield the N × N temperatures after each time step; rows run from bottom to top, columns from left to right."""
    spacing = SIDE / (size + 1)
    nodes = np.arange(1, size + 1)
    angles = np.pi * nodes / (size + 1)
    sines = np.sqrt(2 / (size + 1)) * np.sin(np.outer(nodes, angles))  # symmetric and its own inverse
    eigenvalues = (2 * np.cos(angles) - 2) / spacing**2
    divisor = 1 - TIME_STEP * DIFFUSIVITY * (eigenvalues[:, None] + eigenvalues[None, :])

    boundary = np.zeros((size, size))
    boundary[:, 0] += left
    boundary[:, -1] += right
    boundary[0, :] += bottom
    boundary[-1, :] += top

    source = TIME_STEP * DIFFUSIVITY / spacing**2 * (sines @ boundary @ sines)
    state = sines @ np.full((size, size), initial) @ sines
    for _ in range(NUM_STEPS):
        state = (state + source) / divisor
        yield sines @ state @ sines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, required=True, help="N, the interior nodes along one side")
    for name in ("initial", "left", "right", "bottom", "top"):
        parser.add_argument(f"--{name}", type=float, required=True, help="temperature in K")
    arguments = parser.parse_args()

    with connect() as simulation:
        for time_step, temperature in enumerate(solve(**vars(arguments))):
            if not simulation.send(time_step, temperature=temperature):
                break


if __name__ == "__main__":
    main()
