"""The norm that is logged and the limits that are kept."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server.errors import UserCodeError
from tests.support.settings import settings
from tests.support.torch_servers import ExactScaling, Scale, norms, train


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Plane(Scale):
    """Two weights, 1 at first, and the gradient (3, 4) × mean of the batch."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(2, 1, bias=False)
        nn.init.ones_(model.weight)
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch * batch.new_tensor([3.0, 4.0])).mean()


def learned(server: Plane) -> list[float]:
    values: list[float] = (1 - server.model.weight).flatten().tolist()
    return values


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [3.0, 4.0]),
        ({"clip_norm": 10.0}, [3.0, 4.0]),
        ({"clip_norm": 2.5}, [1.5, 2.0]),
        ({"clip_value": 3.5}, [3.0, 3.5]),
        ({"clip_value": 0.5}, [0.5, 0.5]),
    ],
)
@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_clipped_and_their_norm_before_is_logged(
    limits: dict[str, float], expected: list[float], scale: float | None, accumulate: int
) -> None:
    server = Plane(settings(accumulate=accumulate, **limits))
    precision = None if scale is None else ExactScaling(scale)
    found = train(server, [[1.0, 1.0]] * accumulate, precision=precision)
    assert learned(server) == pytest.approx(expected, rel=1e-6)
    assert norms(found) == pytest.approx([5.0])


def test_the_norm_of_16_bit_gradients_is_taken_in_32_bits() -> None:
    class Long(Scale):
        def prepare_training_attributes(self) -> Any:
            model = nn.Linear(1, 70_000, bias=False)
            return model, torch.optim.SGD(model.parameters(), lr=1.0)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(batch).sum()

    server = Long(settings(precision="bf16-true"))
    found = train(server, [[1.0]])
    assert norms(found) == pytest.approx([70_000**0.5], rel=1e-6)


def test_the_norm_of_an_update_that_is_skipped_is_not_logged() -> None:
    server = Scale(settings())
    found = train(server, [[0.5], [float("nan")]])
    assert norms(found) == [0.5]


class FewLearn(Scale):
    """Only a part of the model learns."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(1, 1, bias=False).requires_grad_(False), nn.Linear(1, 1, bias=False))
        for layer in model:
            nn.init.ones_(layer.weight)
        return model, torch.optim.SGD(model[1].parameters(), lr=1.0)


def test_weights_that_do_not_learn_have_no_part_in_the_norm() -> None:
    server = FewLearn(settings())
    found = train(server, [[0.5]])
    assert norms(found) == [0.5]


class Apart(Scale):
    """Two modules and a lonely parameter that one optimizer has; the loss is the mean of the batch times all three."""

    def prepare_training_attributes(self) -> Any:
        self.decoder, self.factor = nn.Linear(1, 1, bias=False), nn.Parameter(torch.ones(()))
        encoder = nn.Linear(1, 1, bias=False)
        for layer in (encoder, self.decoder):
            nn.init.ones_(layer.weight)
        parameters = [*encoder.parameters(), *self.decoder.parameters(), self.factor]
        return encoder, torch.optim.SGD(parameters, lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.skip_batch() if batch.isnan().any() else (self.factor * self.decoder(self.model(batch))).mean()


@pytest.mark.parametrize(
    ("accumulate", "batches"), [(2, [[0.5, 0.5], [0.25, 0.25, 0.25, 0.25]]), (3, [[0.5], [0.25, 0.25], [float("nan")]])]
)
def test_parameters_outside_the_model_get_the_same_mean_gradient(accumulate: int, batches: list[list[float]]) -> None:
    server = Apart(settings(accumulate=accumulate))
    found = train(server, batches)
    weights = [server.model.weight, server.decoder.weight, server.factor]
    assert [1 - weight.item() for weight in weights] == pytest.approx([1 / 3] * 3)
    assert norms(found) == pytest.approx([(3 / 9) ** 0.5])


class Watching(Plane):
    """Doubles the gradients, and keeps what they were."""

    def __init__(self, config: Any, factor: float = 2.0) -> None:
        super().__init__(config)
        self.factor = factor
        self.seen: list[list[float]] = []
        self.norms: list[dict[str, float]] = []
        self.hold_attributes(tell_gradients=self.on_gradients)

    def on_gradients(self, model: nn.Module) -> None:
        assert model is self.model
        [parameter] = model.parameters()
        assert parameter.grad is not None
        self.seen.append(parameter.grad.flatten().tolist())
        self.norms.append(self.gradient_norms())
        if len(self.seen) % 2:
            parameter.grad *= self.factor
        else:
            parameter.grad = self.factor * parameter.grad


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, [6.0, 8.0]), ({"clip_norm": 2.5}, [1.5, 2.0]), ({"clip_value": 7.0}, [6.0, 7.0])],
)
@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_gradients_of_an_update_are_shown_as_a_whole_and_used_as_they_are_left(
    limits: dict[str, float], expected: list[float], scale: float | None, accumulate: int
) -> None:
    server = Watching(settings(accumulate=accumulate, **limits))
    precision = None if scale is None else ExactScaling(scale)
    found = train(server, [[1.0, 1.0]] * (2 * accumulate), precision=precision)
    assert server.seen == [pytest.approx([3.0, 4.0])] * 2
    assert server.norms == [{"weight": pytest.approx(5.0)}] * 2
    assert learned(server) == pytest.approx([2 * value for value in expected], rel=1e-6)
    assert norms(found) == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_gradients_that_are_not_finite_are_not_shown_and_those_that_are_made_so_not_used(scale: float | None) -> None:
    server = Watching(settings())
    precision = None if scale is None else ExactScaling(scale)

    def spoil(model: nn.Module) -> None:
        Watching.on_gradients(server, model)
        server.factor = float("inf") if len(server.seen) == 1 else 2.0

    server.hold_attributes(tell_gradients=spoil)
    found = train(server, [[1.0], [float("nan")], [1.0], [1.0]], precision=precision)
    assert server.seen == [pytest.approx([3.0, 4.0])] * 3
    assert [it.skipped for it in found if it is not None] == [False, True, True, False]
    assert learned(server) == pytest.approx([12.0, 16.0])
    assert norms(found) == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_no_loss_scale_excuses_what_on_gradients_makes_not_finite(scale: float | None) -> None:
    server = Watching(settings(max_nonfinite=2))
    server.factor = float("inf")
    with pytest.raises(UserCodeError, match=r"batch 0 was made not finite by on_gradients, like those of the 2"):
        train(server, [[1.0]] * 3, precision=None if scale is None else ExactScaling(scale))
    assert len(server.seen) == 3


def test_the_norms_of_gradients_are_those_of_the_parts_of_a_model() -> None:
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)),
            "table": nn.Embedding(4, 2, sparse=True),
            "unused": nn.Linear(1, 1),
            "short": nn.Linear(2, 2, dtype=torch.bfloat16),
        }
    )
    model.register_parameter("spectrum", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    server = Plane(settings())
    server.model = model
    generator = np.random.default_rng(2)
    gradients: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if not name.startswith("unused"):
            values = torch.tensor(generator.normal(size=parameter.shape)).to(parameter.dtype)
            parameter.grad = values.to_sparse(1) if name == "table.weight" else values
            gradients[name] = values.to(torch.complex128).numpy()

    def expected(prefix: str) -> Any:
        chosen = [each for name, each in gradients.items() if name.startswith(prefix)]
        return pytest.approx(np.sqrt(sum(np.sum(np.abs(each) ** 2) for each in chosen)), rel=1e-6)

    parts = ["encoder", "table", "short", "spectrum"]
    assert server.gradient_norms() == {part: expected(part) for part in parts}
    assert server.gradient_norms(depth=2)["encoder.1"] == expected("encoder.1")
