"""The heat study without a network and without torch: least squares over everything that was ever trained on.

The heat equation is linear, so each temperature of the field is a sum of the five given ones, with weights that change
over time. Each weight is a curve through a few knots; the heights at the knots are what is learned.
"""

import numpy as np

from stream_server import StreamServer

RIDGE = 1e-9


class HeatServer(StreamServer):
    """Solves the normal equations anew after each batch: no learning rate, and one look at a sample is enough."""

    def prepare_training_attributes(self):
        self.num_knots = self.config.user["knots"]
        num_features = self.num_knots * len(self.parameter_names)
        num_nodes = int(np.prod(self.config.study.fields["temperature"].shape))
        self.num_batches = 0
        self.products = np.zeros((num_features, num_features))
        self.projections = np.zeros((num_features, num_nodes))
        self.weights = np.zeros((num_features, num_nodes))

    def process_batch(self, batch, config):
        # Most happens at the beginning, so that the knots are closer together there.
        places = np.sqrt(batch.time_steps / config.study.time_steps.num) * (self.num_knots - 1)
        hats = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(self.num_knots)))
        features = batch.parameters[:, :, None] * hats[:, None, :]
        return features.reshape(len(batch), -1), batch.fields["temperature"].reshape(len(batch), -1)

    def training_step(self, batch, batch_idx):
        features, temperatures = batch
        loss = self.validation_step(batch, batch_idx)
        products, projections = self.all_reduce(
            [features.T @ features / len(features), features.T @ temperatures / len(features)]
        )
        self.num_batches += 1
        self.products += (products - self.products) / self.num_batches
        self.projections += (projections - self.projections) / self.num_batches
        ridge = RIDGE * np.trace(self.products) * np.eye(len(self.products))
        self.weights = np.linalg.solve(self.products + ridge, self.projections)
        return loss

    def validation_step(self, batch, batch_idx):
        features, temperatures = batch
        return float(np.mean((features @ self.weights - temperatures) ** 2))

    def predict(self, batch):
        features, _ = batch
        return features @ self.weights

    def state_dict(self):
        names = ("num_batches", "products", "projections", "weights")
        return {name: getattr(self, name) for name in names}

    def replicated_state(self):
        return {"products": self.products, "projections": self.projections}

    def load_state_dict(self, state):
        vars(self).update(state)
