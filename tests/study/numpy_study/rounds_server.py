"""The linear model of a study in rounds, of which each rank notes the samples of its batches and the rounds."""

from pathlib import Path

import numpy as np
from server import LinearServer


class RoundsServer(LinearServer):
    """A line of `drawn-RANK.txt` for each sample: batch, simulation, time step. What a restart takes back goes."""

    def prepare_training_attributes(self):
        super().prepare_training_attributes()
        self.events = []

    def process_simulation_data(self, data, config):
        return *super().process_simulation_data(data, config), np.array([data.simulation_id, data.time_step])

    def on_train_start(self):
        for path in Path(self.output_dir).glob("drawn-*.txt") if self.rank == 0 else ():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if int(line.split()[0]) < self.progress.batches))

    def training_step(self, batch, batch_idx):
        inputs, signals, keys = batch
        with (self.output_dir / f"drawn-{self.rank}.txt").open("a") as file:
            np.savetxt(file, np.insert(keys, 0, batch_idx, axis=1), fmt="%d")
        return super().training_step((inputs, signals), batch_idx)

    def validation_step(self, batch, batch_idx):
        inputs, signals, keys = batch
        assert (keys[:, 0] < self.config.validation.simulations).all()
        return super().validation_step((inputs, signals), batch_idx)

    def on_round_start(self, round_idx):
        self.note("start", round_idx)

    def on_round_end(self, round_idx):
        self.note("end", round_idx)

    def on_validation_end(self, metrics):
        self.note("validation", self.progress.rounds)

    def note(self, event, round_idx):
        self.events.append([event, round_idx, self.progress.batches])

    def state_dict(self):
        return super().state_dict() | {"events": self.events}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.events = state["events"]

    def replicated_state(self):
        return {"weights": self.weights}

    def on_train_end(self):
        np.savetxt(self.output_dir / f"events-{self.rank}.txt", np.array(self.events), fmt="%s")
