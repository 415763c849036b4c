"""A simulation that takes no time: eight values, linear in its two parameters and the time step."""

import numpy as np

from stream_server.client_api import connect

NUM_STEPS = 20
PLACES = np.arange(8) / 8


def ripple(parameters):
    """Yield the signal of each time step."""
    for time_step in range(NUM_STEPS):
        yield parameters["offset"] + parameters["slope"] * PLACES + time_step / NUM_STEPS


def main():
    with connect() as simulation:
        for time_step, signal in enumerate(ripple(simulation.parameters)):
            fields = {"signal": signal}
            if time_step % 2 == 0:
                fields["energy"] = np.array([np.sum(signal**2)])
            if not simulation.send(time_step, **fields):
                break


if __name__ == "__main__":
    main()
