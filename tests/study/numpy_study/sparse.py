"""The same simulation, which sends only some time steps, and nobody knows beforehand which."""

from ripple import NUM_STEPS, signal_at

from stream_server.client_api import connect

with connect() as simulation:
    for time_step in range(simulation.id % 3, NUM_STEPS, 3):
        simulation.send(time_step, signal=signal_at(time_step, simulation.parameters))
