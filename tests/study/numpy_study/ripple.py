"""A simulation that takes no time: eight values, linear in its two parameters and the time step."""

import numpy as np

from stream_server.client_api import connect

NUM_STEPS = 20
PLACES = np.arange(8) / 8


def signal_at(time_step, parameters):
    return parameters["offset"] + parameters["slope"] * PLACES + time_step / NUM_STEPS


def ripple(parameters):
    """Yield the signal of each time step."""
    for time_step in range(NUM_STEPS):
        yield signal_at(time_step, parameters)


def send_all(simulation):
    """Run to the end; False if the study has ended before."""
    for time_step in simulation.time_steps or range(NUM_STEPS):
        signal = signal_at(time_step, simulation.parameters)
        fields = {"signal": signal}
        if time_step % 2 == 0:
            fields["energy"] = np.array([np.sum(signal**2)])
        if not simulation.send(time_step, **fields):
            return False
    return True


if __name__ == "__main__":
    with connect() as simulation:
        send_all(simulation)
