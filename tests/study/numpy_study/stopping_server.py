"""A server that wants nothing more of a simulation with a low `offset` once it has seen three of its time steps."""

from server import LinearServer


class StoppingServer(LinearServer):
    def process_simulation_data(self, data, config):
        if data.parameters[0] < 0 and data.time_step == 2:
            self.stop_simulation(data.simulation_id, "its offset is low")
        return super().process_simulation_data(data, config)
