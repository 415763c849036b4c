"""The networks that are trained, and the sizes of their samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.step import NUM_PARAMETERS
from stream_server import TorchServer

NUM_STEPS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A training: samples of one float32 field of `num_values`, `capacity` of them in the buffer."""

    name: str
    num_values: int
    batch_size: int
    capacity: int
    num_batches: int
    make_model: Callable[[int], nn.Module]

    @property
    def sample_bytes(self) -> int:
        return 4 * self.num_values

    @property
    def batch_bytes(self) -> int:
        return self.batch_size * self.sample_bytes

    def make(self, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model and its optimizer, made on the device."""
        with device:
            model = self.make_model(self.num_values)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def server_class(self, device: torch.device) -> type[TorchServer]:
        """A server class as a user would write it."""
        case = self

        class Server(TorchServer):
            def prepare_training_attributes(self) -> Any:
                return case.make(device)

            def process_batch(self, batch: Any, config: Any) -> Any:
                inputs = np.column_stack((batch.parameters, batch.time_steps % NUM_STEPS)) / NUM_STEPS
                return inputs, batch.fields["field"]

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return loss_of(self.model, *batch)

        return Server


def loss_of(model: nn.Module, inputs: Tensor, fields: Tensor) -> Tensor:
    """The training loss of both kinds of network."""
    return functional.mse_loss(model(inputs, fields), fields)


class Heat(nn.Module):
    """The heat study's network: from parameters and a time step to the whole field."""

    def __init__(self, num_values: int) -> None:
        super().__init__()
        self._layers = nn.Sequential(
            nn.Linear(NUM_PARAMETERS + 1, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, num_values)
        )

    def forward(self, inputs: Tensor, fields: Tensor) -> Tensor:
        output: Tensor = self._layers(inputs)
        return output


class Convolutions(nn.Module):
    """A small U-Net on two fields of a square grid, from a state to a state."""

    CHANNELS = 64

    def __init__(self, num_values: int) -> None:
        super().__init__()
        wide = 2 * self.CHANNELS
        self._size = round((num_values / 2) ** 0.5)
        self._enter = _block(2, self.CHANNELS)
        self._down = nn.Sequential(nn.Conv2d(self.CHANNELS, wide, 2, stride=2), _block(wide, wide))
        self._up = nn.ConvTranspose2d(wide, self.CHANNELS, 2, stride=2)
        self._leave = nn.Sequential(_block(wide, self.CHANNELS), nn.Conv2d(self.CHANNELS, 2, 1))

    def forward(self, inputs: Tensor, fields: Tensor) -> Tensor:
        entered = self._enter(fields.view(-1, 2, self._size, self._size))
        output: Tensor = self._leave(torch.cat((entered, self._up(self._down(entered))), 1)).flatten(1)
        return output


def _block(num_in: int, num_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, 3, padding=1), nn.ReLU(), nn.Conv2d(num_out, num_out, 3, padding=1), nn.ReLU()
    )


CASES = (
    Case(name="heat1000", num_values=10**6, batch_size=10, capacity=800, num_batches=30, make_model=Heat),
    Case(name="heat100", num_values=10**4, batch_size=10, capacity=8_000, num_batches=200, make_model=Heat),
    Case(name="unet128", num_values=2 * 128**2, batch_size=32, capacity=4_000, num_batches=20, make_model=Convolutions),
)
# The same code in seconds on a CPU.
SMALL = (
    replace(CASES[0], num_values=1_000, capacity=100, num_batches=5),
    replace(CASES[1], num_values=100, capacity=200, num_batches=5),
    replace(CASES[2], num_values=2 * 16**2, capacity=100, batch_size=4, num_batches=2),
)
