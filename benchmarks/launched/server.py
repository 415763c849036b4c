"""A learner that learns nothing."""

from stream_server import StreamServer


class NoServer(StreamServer):
    def process_simulation_data(self, data, config):
        return data.fields["u"]

    def training_step(self, batch, batch_idx):
        return 0.0
