"""A server that keeps every sample that it is given."""

import numpy as np

from stream_server import StreamServer


class KeepingServer(StreamServer):
    """Learns nothing; leaves the samples beside its results, by simulation, time step and field."""

    def prepare_training_attributes(self):
        self.samples = {}

    def process_simulation_data(self, data, config):
        for name, values in data.fields.items():
            self.samples[f"{data.simulation_id}.{data.time_step}.{name}"] = np.array(values)
        return 0.0

    def training_step(self, batch, batch_idx):
        self.all_reduce([np.zeros(1)])
        return 0.0

    def validation_step(self, batch, batch_idx):
        return 0.0

    def on_train_end(self):
        np.savez(self.output_dir / f"samples-{self.rank}.npz", **self.samples)
