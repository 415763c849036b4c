"""The small network with schedules of the learning rate: one of a cycle, and the one of docs/guide/training.md."""

from pathlib import Path

import torch
from torch_server import TinyServer

import stream_server

DOCS = Path(stream_server.__file__).parents[1] / "docs" / "guide" / "training.md"


class OneCycleServer(TinyServer):
    def prepare_training_attributes(self):
        model, optimizer = super().prepare_training_attributes()
        length = self.expected_lr_steps
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=length)


class DocumentedServer(TinyServer):
    """Makes what the example makes, out of the small network."""

    def prepare_training_attributes(self):
        [_, example, *_] = DOCS.read_text().partition("def prepare_training_attributes(self):")[1:]
        code = "def prepare(self):" + example.partition("```")[0]
        names = {**vars(torch.optim.lr_scheduler), "torch": torch, "make_model": self.make_model}
        exec(code, names)
        return names["prepare"](self)

    def make_model(self):
        model, _ = super().prepare_training_attributes()
        return model
