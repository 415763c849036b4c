"""A linear model of sums over points. Each rank notes the samples of its batches, after it has looked at each value."""

import numpy as np
from swarm import energy_of, points_at, weights_at

from stream_server import StreamServer, pack, pad

STEP_SIZE = 0.001


class SwarmServer(StreamServer):
    """A line of `samples-RANK.txt` for each sample of a batch, of all starts: its simulation and its time step."""

    def prepare_training_attributes(self):
        self.weights = np.zeros(4)

    def process_batch(self, batch, config):
        rows = zip(batch.samples(), batch.parameters, strict=True)
        for sample, parameters in rows:
            self.check(sample, dict(zip(self.parameter_names, parameters, strict=True)))
        points, offsets = pack(batch.fields["points"])
        padded, mask = pad(batch.fields["points"], np.nan)
        np.testing.assert_array_equal(padded[mask], points)
        assert np.isnan(padded[~mask]).all()
        ones = np.ones((len(points), 1))
        sums = np.zeros((len(batch), 4))
        np.add.at(sums, np.repeat(np.arange(len(batch)), np.diff(offsets)), np.hstack([ones, points]))
        keys = np.column_stack([batch.simulation_ids, batch.time_steps])
        return sums, batch.fields["energy"][:, 0], keys, batch.fields["points"]

    def check(self, sample, parameters):
        points = points_at(sample.time_step, parameters)
        np.testing.assert_array_equal(sample.fields["points"], points)
        assert not sample.fields["points"].flags.writeable
        np.testing.assert_array_equal(sample.fields["energy"], energy_of(points))
        weights = weights_at(sample.time_step, parameters)
        if weights is None:
            assert "weights" not in sample.fields
        else:
            np.testing.assert_array_equal(sample.fields["weights"], weights.astype(np.float32))

    def training_step(self, batch, batch_idx):
        sums, energies, keys, points = batch
        assert [len(of_sample) for of_sample in points] == sums[:, 0].tolist()
        with (self.output_dir / f"samples-{self.rank}.txt").open("a") as file:
            np.savetxt(file, keys, fmt="%d")
        errors = sums @ self.weights - energies
        (gradient,) = self.all_reduce([sums.T @ errors / len(sums)])
        self.weights -= STEP_SIZE * gradient
        return float(np.mean(errors**2))

    def validation_step(self, batch, batch_idx):
        sums, energies, keys, _ = batch
        assert (keys[:, 0] < self.config.validation.simulations).all()
        return float(np.mean((sums @ self.weights - energies) ** 2))

    def on_train_end(self):
        if self.rank == 0 and self.config.normalization.fields:
            np.savez(self.output_dir / "statistics.npz", mean=self.normalization.mean["points"])

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

    def replicated_state(self):
        return self.state_dict()
