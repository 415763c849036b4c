"""Servers that look at every sample: whether it is what the simulation has sent."""

import numpy as np
from blocks import pressure
from ripple import signal_at
from server import LinearServer


class RippleServer(LinearServer):
    """Knows what signal belongs to the parameters, and that every other step has an energy."""

    def process_simulation_data(self, data, config):
        parameters = dict(zip(self.parameter_names, data.parameters, strict=True))
        signal = signal_at(data.time_step, parameters)
        np.testing.assert_array_equal(data.fields["signal"], signal)
        energy = data.fields.get("energy")
        assert (energy is None) == (data.time_step % 2 == 1)
        assert energy is None or energy == np.sum(signal**2)
        return super().process_simulation_data(data, config)


class BlocksServer(LinearServer):
    """Knows the field that several client ranks send in parts."""

    def process_simulation_data(self, data, config):
        np.testing.assert_array_equal(data.fields["pressure"], pressure(data.fields["signal"], data.time_step))
        return super().process_simulation_data(data, config)
