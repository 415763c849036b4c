"""Advection of sharp pulses, u_t + c u_x = 0, on a periodic interval of length 1: the exact solution."""

from collections.abc import Iterator, Mapping

import numpy as np

from stream_server.client_api import simulations

NUM_NODES = 128
NUM_STEPS = 41
TIME_STEP = 0.02
NUM_PULSES = 3


def pulses(parameters: Mapping[str, float | np.ndarray], x: np.ndarray) -> np.ndarray:
    """The initial state at places of shape (…, nodes): Gaussian pulses on the interval and its periodic images."""
    u = 0.0
    for pulse in range(1, NUM_PULSES + 1):
        centre, width, height = (
            np.asarray(parameters[f"{name}{pulse}"])[..., None] for name in ("centre", "width", "height")
        )
        distance = (x - centre + 0.5) % 1 - 0.5
        u = u + height * sum(np.exp(-((distance + image) ** 2) / (2 * width**2)) for image in (-1, 0, 1))
    return u


def solve(parameters: Mapping[str, float | np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The field of one step after the other, of shape (nodes,); (n, nodes) if the parameters are of shape (n,)."""
    x = np.arange(NUM_NODES) / NUM_NODES
    for step in range(NUM_STEPS):
        way = np.asarray(parameters["velocity"])[..., None] * step * TIME_STEP
        yield {"u": pulses(parameters, x - way)}


def main() -> None:
    for simulation in simulations():
        for step, fields in enumerate(solve(simulation.parameters)):
            if not simulation.send(step, **fields):
                break


if __name__ == "__main__":
    main()
