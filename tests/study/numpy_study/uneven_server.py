"""A server whose loss is known: high where `offset` is above 0.5, whatever is trained."""

import numpy as np

from stream_server import StreamServer


class UnevenServer(StreamServer):
    def prepare_training_attributes(self):
        self.num_trained = 0

    def process_batch(self, batch, config):
        return batch

    def training_step(self, batch, batch_idx):
        self.all_reduce(np.zeros(1))
        self.num_trained += len(batch)
        losses = np.where(batch.parameters[:, 0] > 0.5, 5.0, 1.0)
        self.report(batch.simulation_ids, batch.time_steps, steepness=batch.parameters[:, 1])
        return losses

    def validation_step(self, batch, batch_idx):
        return np.full(len(batch), 0.25)

    def state_dict(self):
        return {"num_trained": self.num_trained}

    def load_state_dict(self, state):
        self.num_trained = state["num_trained"]
