"""A model of one number. Each rank notes the samples of its batches, after it has looked at each value."""

import numpy as np

from stream_server import StreamServer, pack


def mesh_of(slope, size):
    """What mesh.f90 sends once: its nodes and edges."""
    number = np.arange(1.0, int(size) + 1)
    edges = np.arange(max(0, int(size) - 1))
    return np.stack([slope * number, number], axis=1), np.stack([edges, edges + 1], axis=1)


class MeshServer(StreamServer):
    """A line of `samples-RANK.txt` for each sample of a batch, of all starts: its simulation and its time step."""

    def prepare_training_attributes(self):
        self.weight = np.zeros(1)

    def process_batch(self, batch, config):
        for sample in batch.samples():
            nodes, edges = mesh_of(*sample.parameters)
            np.testing.assert_array_equal(sample.fields["nodes"], nodes)
            np.testing.assert_array_equal(sample.fields["edges"], edges)
            assert sample.fields["edges"].dtype == np.int32
            assert sample.time_steps.tolist() == [sample.time_step, sample.time_step + 1]
            for step, u in zip(sample.time_steps.tolist(), sample.fields["u"], strict=True):
                np.testing.assert_array_equal(u, nodes[:, 0] + step)
        nodes, offsets = pack(batch.fields["nodes"])
        edges, of_edges = pack(batch.fields["edges"])
        edges = edges + np.repeat(offsets[:-1], np.diff(of_edges))[:, None]
        now, then = (pack(batch.fields["u"][:, step])[0] for step in range(2))
        assert len(nodes) == len(now) == len(then)
        return now, then, edges, np.column_stack([batch.simulation_ids, batch.time_steps[:, 0]])

    def training_step(self, batch, batch_idx):
        now, then, edges, keys = batch
        with (self.output_dir / f"samples-{self.rank}.txt").open("a") as file:
            np.savetxt(file, keys, fmt="%d")
        slopes = now[edges[:, 1]] - now[edges[:, 0]]
        # All meshes of a batch may be empty.
        error = np.mean([0.0, *(now + self.weight - then), *slopes**2])
        (gradient,) = self.all_reduce([np.array([error])])
        self.weight -= 0.1 * gradient
        return float(error**2)

    def validation_step(self, batch, batch_idx):
        now, then, _, _ = batch
        return float(np.mean([0.0, *(now + self.weight - then)]) ** 2)

    def on_train_end(self):
        if self.rank == 0:
            np.savez(self.output_dir / "end.npz", weight=self.weight, mean=self.normalization.mean["nodes"])

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]

    def replicated_state(self):
        return self.state_dict()
