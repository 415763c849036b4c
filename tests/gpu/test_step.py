"""Training steps on a GPU, against the same in 64 bits on the CPU, and continued from a checkpoint."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from stream_server import TorchServer
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.framework import TorchFramework
from stream_server.server.training.torch.precision import LossScaling
from stream_server.server.training.torch.step import TorchStep
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.torch_servers import Scale, union_batch_of, weight

NUM_STEPS, BATCH_SIZE = 20, 16
# How far the weights may be from those in 64 bits, relative to their norm.
TOLERANCES = {"32-true": 1e-5, "bf16-mixed": 2e-2, "16-mixed": 5e-3}


class Network(TorchServer):
    """A regression with convolutions, module buffers, and dropout if asked for; the same weights in each precision."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(
            nn.Conv1d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm1d(8),
            nn.GELU(),
            nn.Dropout(self.config.user["dropout"]),
            nn.Flatten(),
            nn.Linear(8 * 12, 12),
        )
        rng = np.random.default_rng(3)
        with torch.no_grad():
            for it in model.parameters():
                it.add_(torch.from_numpy(rng.normal(scale=0.1, size=it.shape)) - it)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=self.config.user.get("fused"))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        return functional.mse_loss(self.model(inputs[:, None]), targets)


def server_with(dropout: float = 0.0, fused: bool | None = None, **training: Any) -> Network:
    config = settings(**training)
    config.user = {"dropout": dropout, "fused": fused}
    return Network(config)


def train(step: TorchStep, numbers: range) -> list[float]:
    """The losses of the steps of these numbers, each with data of its own."""
    losses = []
    for number in numbers:
        inputs = torch.from_numpy(np.random.default_rng(number).normal(size=(BATCH_SIZE, 12)))
        union_batch, _ = union_batch_of([0.0] * BATCH_SIZE)
        data = step.to_device(step.stage((inputs.float(), inputs.cumsum(1).sin().float())))
        outcome = step.run(union_batch, data, number)
        assert outcome.loss is not None
        losses.append(outcome.loss)
    return losses


def weights_after(server: Network, num: int = NUM_STEPS) -> np.ndarray:
    with TorchStep(server, SoloRanks(), server.config) as step:
        train(step, range(num))
        assert next(server.model.parameters()).is_cuda == server.device.type.startswith("cuda")
        return torch.cat([it.detach().double().cpu().reshape(-1) for it in server.model.parameters()]).numpy()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", TOLERANCES)
def test_training_on_a_gpu_learns_the_weights_that_64_bits_on_the_cpu_learn(
    precision: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = weights_after(server_with(precision=precision, fused=fused))
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: False)
        expected = weights_after(server_with(precision="64-true"))
    assert np.linalg.norm(found - expected) <= TOLERANCES[precision] * np.linalg.norm(expected)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_a_training_goes_on_bit_by_bit_from_a_state_that_was_saved(precision: str) -> None:
    """Weights, Adam's moments, module buffers, the loss scale and the random numbers of dropout on the GPU."""
    options: dict[str, Any] = {"precision": precision, "dropout": 0.3, "deterministic": True}
    server = server_with(**options)
    with TorchStep(server, SoloRanks(), server.config) as step:
        train(step, range(5))
        saved = from_bytes(to_bytes({"step": step.state_dict(), "random": step.random_state()}))
        expected = train(step, range(5, 10))
        last = step.state_dict()
    server = server_with(**options)
    with TorchStep(server, SoloRanks(), server.config) as step:
        step.load_state_dict(saved["step"])
        step.load_random_state(saved["random"])
        assert next(server.model.parameters()).is_cuda
        assert train(step, range(5, 10)) == expected
        assert_equal(step.state_dict(), last)


def test_an_overflow_in_16_bits_costs_a_step_and_halves_the_scale() -> None:
    server = Scale(settings(precision="16-mixed"))
    with TorchStep(server, SoloRanks(), server.config) as step:
        scaling = step._precision
        assert isinstance(scaling, LossScaling)
        before = scaling.scale
        # The loss has no place in 16 bits after scaling; half the scale fits.
        union_batch, data = union_batch_of([1e4])
        outcomes = [step.run(union_batch, step.to_device(data.float()), number) for number in range(30)]
        assert outcomes[0].skipped
        assert not outcomes[-1].skipped
        assert scaling.scale < before
        assert np.isfinite(weight(server))
        assert weight(server) != 1.0


def test_a_compiled_model_learns_what_it_learns_as_it_is() -> None:
    expected = weights_after(server_with(precision="32-true"), 5)
    found = weights_after(server_with(precision="32-true", compile=True), 5)
    assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)


def test_the_memory_of_the_device_is_told() -> None:
    weights_after(server_with(precision="32-true"), 1)
    found = TorchFramework().device_bytes()
    assert 0 < found["memory/device_bytes"] <= found["memory/device_peak_bytes"]


def assert_equal(found: Any, expected: Any) -> None:
    """Plain states are equal bit by bit."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            assert_equal(each, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
