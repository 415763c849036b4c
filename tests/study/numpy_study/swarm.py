"""A simulation of points whose number changes from step to step, at some steps to none and at others to the most."""

import numpy as np

from stream_server.client_api import connect

NUM_STEPS = 20
MOST = 12


def points_at(time_step, parameters):
    """The points of a time step, shape (n, 3), which tell the step and the parameters."""
    num = (7 * time_step + int(10 * abs(parameters["offset"]))) % (MOST + 1)
    places = np.arange(3 * num, dtype=np.float64).reshape(num, 3)
    return parameters["slope"] * places + parameters["offset"] + time_step / NUM_STEPS


def weights_at(time_step, parameters):
    """The weight of each point, shape (n,); odd time steps have none."""
    return None if time_step % 2 else points_at(time_step, parameters)[:, 0] ** 2


def energy_of(points):
    """A value of the points together, whatever their order, shape (1,)."""
    return np.array([len(points) + points.sum()])


def send_all(simulation):
    """Run to the end."""
    for time_step in range(NUM_STEPS):
        points = points_at(time_step, simulation.parameters)
        fields = {"points": points, "energy": energy_of(points)}
        weights = weights_at(time_step, simulation.parameters)
        if weights is not None:
            fields["weights"] = weights.astype(np.float32)
        if not simulation.send(time_step, **fields):
            return


if __name__ == "__main__":
    with connect() as simulation:
        send_all(simulation)
