"""bf16-mixed learns as well as 32 bits do."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stream_server.server.progress.batches import UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.step import TorchStep
from tests.support.settings import settings
from tests.support.streams import batch_of

HEAT = Path(__file__).parents[4] / "configs" / "heat" / "server.py"
SIZE = 12
NUM_STEPS = 400
NUM_SAMPLES = 32


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def plates(rng: np.random.Generator, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Plates that go from one temperature to the mean of what their four edges would give; inputs and fields."""
    inputs = np.column_stack((rng.uniform(100, 500, (num, 5)), rng.integers(0, 100, num)))
    initial, left, right, bottom, top, step = inputs.T[:, :, None, None]
    y, x = np.mgrid[0 : 1 : SIZE * 1j, 0 : 1 : SIZE * 1j]
    steady = ((1 - x) * left + x * right + (1 - y) * bottom + y * top) / 2
    share = np.exp(-step / 30)
    fields = share * initial + (1 - share) * steady
    return torch.from_numpy(inputs).float(), torch.from_numpy(fields.reshape(num, -1)).float()


def validation_loss(precision: str) -> float:
    config: Any = settings(precision=precision, batch_size=NUM_SAMPLES)
    config.study.fields = {"temperature": SimpleNamespace(shape=(SIZE, SIZE))}
    config.user = {"lr": 1e-3}
    server = runpy.run_path(str(HEAT))["HeatServer"](config)
    server.parameter_names = ("initial", "left", "right", "bottom", "top")
    rng = np.random.default_rng(1)
    with TorchStep(server, SoloRanks(), config) as step:
        for index in range(NUM_STEPS):
            data = plates(rng, NUM_SAMPLES)
            union_batch = UnionBatch(own=batch_of(data, NUM_SAMPLES), sizes=(NUM_SAMPLES,))
            step.run(union_batch, data, index)
        with step.evaluating():
            return float(server.validation_step(plates(np.random.default_rng(2), 256), 0))


# Without instructions for it in the processor, bf16 is slow, and slower still beside other work.
@pytest.mark.full
@pytest.mark.slow
def test_bf16_mixed_trains_the_heat_network_to_within_a_tenth_of_the_32_bit_loss() -> None:
    at_start, expected, found = 300.0**2, validation_loss("32-true"), validation_loss("bf16-mixed")
    assert expected < 0.01 * at_start
    assert found < 1.1 * expected
