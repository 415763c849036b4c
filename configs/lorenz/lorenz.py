"""The Lorenz attractor: one simulation of the ensemble.

dx/dt = σ(y - x), dy/dt = x(ρ - z) - y, dz/dt = xy - βz, integrated by the classical Runge-Kutta method of
fourth order. Each sample pairs a state with the one that follows it a time step later: the network learns
to make that step.
"""

import argparse

import numpy as np

from stream_server.client_api import connect

TIME_STEP = 0.01
NUM_STEPS = 1000
SETTLING_STEPS = 500


def derivative(state, sigma, rho, beta):
    x, y, z = state
    return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


def runge_kutta_step(state, *constants):
    first = derivative(state, *constants)
    second = derivative(state + TIME_STEP / 2 * first, *constants)
    third = derivative(state + TIME_STEP / 2 * second, *constants)
    fourth = derivative(state + TIME_STEP * third, *constants)
    return state + TIME_STEP / 6 * (first + 2 * second + 2 * third + fourth)


def trajectory(seed, *constants):
    """Yield each state on the attractor and the one that follows it; `seed` is that of the initial state."""
    state = np.random.default_rng(seed).normal(size=3)
    for _ in range(SETTLING_STEPS):
        state = runge_kutta_step(state, *constants)
    for _ in range(NUM_STEPS):
        next_state = runge_kutta_step(state, *constants)
        yield state, next_state
        state = next_state


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--rho", type=float, required=True)
    parser.add_argument("--beta", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True, help="of the initial state")
    arguments = parser.parse_args()
    states = trajectory(arguments.seed, arguments.sigma, arguments.rho, arguments.beta)

    with connect() as simulation:
        for time_step, (state, next_state) in enumerate(states):
            if not simulation.send(time_step, state=state, next_state=next_state):
                break


if __name__ == "__main__":
    main()
