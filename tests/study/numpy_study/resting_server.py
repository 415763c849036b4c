"""The smallest network, with an optimizer that changes nothing."""

import torch
from torch_server import TinyServer


class RestingServer(TinyServer):
    def prepare_training_attributes(self):
        model, _ = super().prepare_training_attributes()
        return model, torch.optim.SGD(model.parameters(), lr=0.0)
