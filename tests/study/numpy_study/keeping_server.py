"""A network beside what each rank keeps for itself, weights of another run, and files of its own in checkpoints."""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch_server import TinyServer


class KeepingServer(TinyServer):
    """Its first layer is frozen and never saved. The other run is played by rank 0, at every second batch."""

    def prepare_training_attributes(self):
        model, _ = super().prepare_training_attributes()
        nn.init.constant_(model[0].weight, 0.5)
        model[0].requires_grad_(False)
        self.teacher = nn.Linear(2, 1, bias=False).requires_grad_(False)
        first = self.output_dir / "first.safetensors"
        if self.rank == 0:
            save_file({"weight": torch.zeros(1, 2)}, first)
        self.teacher.load_state_dict(self.newest_weights(first))
        self.trained = []
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def save_filter(self, name):
        return not name.startswith("0.")

    def process_simulation_data(self, data, config):
        return *super().process_simulation_data(data, config), np.array([data.simulation_id, data.time_step])

    def training_step(self, batch, batch_idx):
        inputs, signals, samples = batch
        if self.model.training:
            self.trained += samples.tolist()
        return functional.mse_loss(self.model(inputs), signals)

    def rank_state_dict(self):
        return {"trained": self.trained}

    def load_rank_state_dict(self, states):
        for rank, state in states.items():
            if rank % self.num_ranks == self.rank:
                self.trained += state["trained"]

    def on_train_start(self):
        self.note("start")

    def on_step_end(self):
        batches, other = self.progress.batches, self.output_dir / "other.safetensors"
        if batches % 2 == 0:
            if self.rank == 0:
                save_file({"weight": torch.full((1, 2), float(batches))}, other)
            self.teacher.load_state_dict(self.newest_weights(other))
        self.note("step")

    def on_checkpoint(self, path):
        own = path / "mine"
        own.mkdir(exist_ok=True)
        (own / f"rank-{self.rank}.json").write_text(json.dumps(self.trained))

    def on_train_end(self):
        (self.output_dir / f"trained-{self.rank}.json").write_text(json.dumps(self.trained))

    def note(self, when):
        line = [when, self.progress.batches, *self.teacher.weight.flatten().tolist()]
        with (self.output_dir / f"teacher-{self.num_ranks}-{self.rank}.jsonl").open("a") as file:
            print(json.dumps(line), file=file)
