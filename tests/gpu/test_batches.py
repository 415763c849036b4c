"""Batches arrive on a GPU bit by bit as they were gathered, while their memory is used again and again."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server import TorchServer
from stream_server.buffers import Buffer, Reservoir, Slots
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.torch.step import TorchStep
from tests.support.settings import settings

NUM_SAMPLES, NUM_VALUES, BATCH_SIZE, NUM_BATCHES = 64, 250_000, 8, 400
# About 2 ms of the GPU, in cycles: copies overtake steps, and wait for each other.
BUSY_CYCLES = 3_000_000
JUNK = -1


class Server(TorchServer):
    """Hands over what it gets, and beside it what process_batch made."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def process_batch(self, batch: Any, config: Any) -> Any:
        return {"field": batch.fields["field"], "made": [batch.fields["field"][:, ::2] + 1]}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_every_bit_of_a_batch_arrives_while_its_memory_is_used_again(prefetch: int, device: torch.device) -> None:
    bits = np.random.default_rng(prefetch).integers(0, 2**23, (NUM_SAMPLES, NUM_VALUES), np.int32)
    weights = np.arange(NUM_VALUES, dtype=np.int64) % 1021 + 1
    # Every integer below 2²⁴ is a float32.
    expected = (bits * weights).sum(1)
    expected_made = ((bits[:, ::2].astype(np.int64) + 1) * weights[::2]).sum(1)
    buffer = full_buffer(bits.astype(np.float32))
    weights_there = torch.from_numpy(weights).to(device)
    found, found_made, drawn = [], [], []
    with ExitStack() as stack:
        server = Server(settings(precision="32-true"))
        enter(server, buffer)
        step = stack.enter_context(TorchStep(server, SoloRanks(), server.config))
        stream = stack.enter_context(
            BatchStream(
                buffer,
                server,
                parameters_of=lambda simulation: np.zeros(1),
                batch_size=BATCH_SIZE,
                phases=Phases(),
                prefetch=prefetch,
                stage=step.stage,
            )
        )
        for number in range(NUM_BATCHES):
            batch = stream.draw(10.0)
            assert batch is not None
            drawn.append(batch.keys[1].copy())
            data = step.to_device(batch.data)
            del batch
            if number % 3 == 0:
                torch.cuda._sleep(BUSY_CYCLES)
            assert data["field"].device == device
            found.append((data["field"].long() * weights_there).sum(1))
            found_made.append((data["made"][0].long() * weights_there[::2]).sum(1))
            # What is freed on the device is taken by others at once.
            shape = data["field"].shape
            del data
            torch.full(shape, JUNK, device=device)
        stream.release()
    rows = np.concatenate(drawn)
    np.testing.assert_array_equal(torch.cat(found).cpu().numpy(), expected[rows])
    np.testing.assert_array_equal(torch.cat(found_made).cpu().numpy(), expected_made[rows])
    assert len(set(rows.tolist())) == NUM_SAMPLES


def full_buffer(values: np.ndarray) -> Buffer:
    """A Reservoir of these rows, whose time steps are their numbers."""
    slots = Slots({"field": values.shape[1:]}, len(values))
    slots.allocate({"field": np.float32})
    buffer = Buffer(Reservoir(capacity=len(values), watermark=1, seed=1), slots)
    claimed = buffer.claim(len(values))
    slots.arrays["field"][claimed] = values
    slots.simulation_ids[claimed] = 0
    slots.time_steps[claimed] = np.arange(len(values))
    buffer.enqueue(claimed)
    buffer.admit()
    return buffer


def enter(server: TorchServer, buffer: Any = None) -> None:
    """Let a server enter a study of one rank."""
    ranks = SoloRanks()
    server.enter_study(ranks, ["x"])
    server.hold_attributes(
        progress=Progress(),
        buffer=buffer or SimpleNamespace(),
        output_dir=server.output_dir,
        _metrics=Metrics(ranks),
        _stops=StopRequests(),
        phases=Phases(),
    )
