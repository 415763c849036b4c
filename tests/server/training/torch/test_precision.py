"""Number formats, loss scaling and what torch may trade for speed."""

from typing import Any

import pytest
import torch
from torch import nn

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.precision import LossScaling, make_precision, numerics
from stream_server.server.training.torch.step import TorchStep
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.torch_servers import ExactScaling, Scale, norms, train, union_batch_of, weight

NAN = float("nan")


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(("name", "instead"), [("16-mixed", "bf16-mixed"), ("16-true", "bf16-true")])
def test_what_a_cpu_cannot_do_is_refused_with_what_to_write_instead(name: str, instead: str) -> None:
    said = f'training.precision "{name}" needs a GPU, and this rank has none: write "{instead}" or "32-true"'
    with pytest.raises(ConfigError, match=said):
        make_precision(name, torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="needs a GPU"):
        TorchStep(Scale(settings()), SoloRanks(), settings(precision="16-mixed"))


def test_a_batch_that_can_be_moved_moves_itself() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    moved = make_precision("32-true", torch.device("meta")).convert({"x": packed, "y": torch.ones(1)})
    assert (moved["x"].data.device.type, moved["y"].device.type) == ("meta", "meta")
    assert moved["x"].batch_sizes.device.type == "cpu"


def test_the_device_cannot_be_assigned() -> None:
    with pytest.raises(UserCodeError, match=r"^self\.device must not be assigned in Scale"):
        Scale(settings()).device = torch.device("cpu")  # type: ignore[misc]


def in_half(init_scale: float) -> LossScaling:
    """16-mixed, as on a GPU."""
    return LossScaling(torch.device("cpu"), torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=10**6))


def test_a_scaled_loss_gives_the_same_update() -> None:
    server = Scale(settings(precision="32-true"))
    train(server, [[0.25, 0.75], [0.125]], precision=in_half(1024.0))
    assert weight(server) == 1 - 0.5 - 0.125


class Steep(Scale):
    """The gradient with regard to the model's output is 1, in 16 bits."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch).sum()


def test_an_overflow_lowers_the_scale_until_the_gradient_fits() -> None:
    """65504 is the largest number in 16 bits."""
    server, scaling = Steep(settings(precision="32-true", nonfinite="stop")), in_half(2.0**18)
    outcomes = train(server, [[0.5]] * 4, precision=scaling)
    assert [outcome.skipped for outcome in outcomes if outcome] == [True, True, True, False]
    assert (scaling.scale, weight(server)) == (2.0**15, 0.5)


@pytest.mark.parametrize("limits", [{}, {"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_a_gradient_that_no_scale_mends_ends_the_study(limits: dict[str, float]) -> None:
    server = Scale(settings(max_nonfinite=1, **limits))
    scaling = ExactScaling(4.0)
    train(server, [[NAN]] * 3, precision=scaling)
    assert (scaling.scale, weight(server)) == (0.5, 1.0)
    with pytest.raises(UserCodeError, match=r"training\.max_nonfinite is 1"):
        train(server, [[NAN]] * 4, precision=ExactScaling(4.0))


class Fused(Scale):
    def prepare_training_attributes(self) -> Any:
        model, _ = super().prepare_training_attributes()
        return model, torch.optim.SGD(model.parameters(), lr=1.0, fused=True)


@pytest.mark.parametrize(
    "limits", [{}, {"clip_norm": 0.25}, {"clip_value": 0.25}, {"clip_norm": 0.25, "accumulate": 2}]
)
def test_a_fused_optimizer_steps_as_another_does_with_loss_scaling_and_clipping(limits: dict[str, Any]) -> None:
    """It takes out the loss scale itself, but for what clipping has taken out before."""
    batches = [[0.5, 0.75], [NAN], [0.125], [0.5]]
    fused, other = Fused(settings(**limits)), Scale(settings(**limits))
    scalings = ExactScaling(1024.0), ExactScaling(1024.0)
    found, expected = (train(it, batches, precision=of) for it, of in zip((fused, other), scalings, strict=True))
    assert [it and it.skipped for it in found] == [it and it.skipped for it in expected]
    assert weight(fused) == weight(other) != 1.0
    assert scalings[0].scale == scalings[1].scale == 512.0
    assert norms(found) == norms(expected)


def test_the_scale_survives_a_restart() -> None:
    server = Scale(settings())
    with TorchStep(server, SoloRanks(), server.config, precision=ExactScaling(4096.0)) as step:
        union_batch, data = union_batch_of([NAN])
        step.run(union_batch, data, 0)
        state = to_bytes(step.state_dict())
    other, scaling = Scale(settings()), ExactScaling(1.0)
    with TorchStep(other, SoloRanks(), other.config, precision=scaling) as step:
        step.load_state_dict(from_bytes(state))
        assert scaling.scale == 2048.0
        union_batch, data = union_batch_of([0.25])
        step.run(union_batch, data, 1)
    assert weight(other) == 0.75


def test_complex_weights_and_buffers_are_of_64_bits_too() -> None:
    module = nn.Linear(2, 2, dtype=torch.complex64)
    module.register_buffer("waves", torch.ones(2, dtype=torch.complex64))
    module.register_buffer("places", torch.ones(2, dtype=torch.int32))
    optimizer = torch.optim.SGD(module.parameters())
    module = make_precision("64-true", torch.device("cpu")).convert_module(module)
    assert {it.dtype for it in (*module.parameters(), module.waves)} == {torch.complex128}
    assert module.places.dtype == torch.int32
    assert optimizer.param_groups[0]["params"][0] is module.weight


class TwoManually(Scale):
    """Two weights with an optimizer each; each value of the batch of two is the gradient of one."""

    automatic_optimization = False

    def prepare_training_attributes(self) -> Any:
        model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
        for layer in model:
            nn.init.ones_(layer.weight)
        model.forward = lambda batch: model[0](batch[:1]) + model[1](batch[1:])
        return model, [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in model]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self.model(batch).mean())
        for optimizer in self.optimizer:
            optimizer.step()
            optimizer.zero_grad()


def test_an_overflow_of_one_optimizer_leaves_the_gradient_of_another_as_it_is() -> None:
    server, scaling = TwoManually(settings()), ExactScaling(1024.0)
    train(server, [[NAN, 0.25], [0.5, 0.25]], precision=scaling)
    assert [layer.weight.item() for layer in server.model] == [0.5, 0.5]
    assert scaling.scale == 512.0


def test_the_state_of_every_optimizer_is_saved() -> None:
    server = TwoManually(settings())
    with TorchStep(server, SoloRanks(), server.config) as step:
        assert len(step.state_dict()["optimizers"]) == 2


def test_numerics_hold_within_and_end_there() -> None:
    before = (torch.get_default_dtype(), torch.get_float32_matmul_precision())
    with numerics(settings(precision="64-true", matmul_precision="medium", deterministic=True).training):
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.are_deterministic_algorithms_enabled()
    assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == before
    assert not torch.are_deterministic_algorithms_enabled()


class Scattering(Scale):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(torch.zeros(1, 1, dtype=batch.dtype).put_(torch.tensor([0]), batch[0])).mean()


def test_deterministic_refuses_what_torch_cannot_repeat() -> None:
    train(Scattering(settings()), [[0.5]])
    with pytest.raises(UserCodeError, match="does not have a deterministic implementation"):
        train(Scattering(settings(deterministic=True)), [[0.5]])


class Parts(Scale):
    """Calls a part of its model, and sees the type of what it gives."""

    def prepare_training_attributes(self) -> Any:
        model = nn.ModuleDict({"part": nn.Linear(1, 1, bias=False)})
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        output = self.model["part"](batch)
        self.dtype = output.dtype
        return output.float().mean()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_the_precision_holds_for_parts_of_a_model(precision: str) -> None:
    server = Parts(settings(precision=precision))
    train(server, [[0.5]])
    assert server.dtype == torch.bfloat16


class Twice(Scale):
    """Takes two steps in one training step."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.outputs = []
        for _ in range(2):
            output = self.model(batch).float().mean()
            self.outputs.append(output.item())
            self.manual_backward(output)
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_after_a_step_of_its_optimizer_a_model_has_its_new_weights_in_low_precision_too() -> None:
    server = Twice(settings(precision="bf16-mixed"))
    train(server, [[0.5]])
    assert server.outputs == [0.5, 0.25]


def test_manual_backward_is_refused_with_automatic_optimisation() -> None:
    class Mixed(Scale):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.manual_backward(self.model(batch).mean())

    with pytest.raises(UserCodeError, match="manual_backward needs automatic_optimization = False"):
        train(Mixed(settings()), [[0.5]])
