"""A loss as users return it: a number for a batch, or a value for each of its samples."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import StepOutcome
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.user.losses import loss_of
from stream_server.server.user.stream_server import StreamServer
from tests.support.settings import settings
from tests.support.torch_servers import Scale, train, union_batch_of, weight

VALUES = [0.5, 1.5, 4.0]


@pytest.mark.parametrize(
    "array",
    [
        np.array(VALUES),
        np.array(VALUES, np.float16),
        torch.tensor(VALUES, requires_grad=True),
        torch.tensor(VALUES, dtype=torch.bfloat16),
        jnp.array(VALUES),
        jnp.array(VALUES, jnp.bfloat16),
    ],
)
def test_a_value_for_each_sample_gives_their_mean_and_the_values(array: Any) -> None:
    mean, values = loss_of(array, 3, "it")
    assert values is not None
    assert (mean, values.dtype, values.tolist()) == (2.0, np.float64, VALUES)


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.array([[2.0]]), torch.tensor([2.0]), jnp.array(2.0)])
def test_a_single_number_is_the_mean_of_samples_that_are_not_known(number: Any) -> None:
    assert loss_of(number, 3, "it") == (2.0, None)


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (2,), (0,)])
def test_another_shape_is_an_error_that_says_which_are_right(shape: tuple[int, ...]) -> None:
    said = (
        r"it of shape \(.*\) for a batch of 3 samples: return the mean, .* one value for each sample, of shape \(3,\)"
    )
    with pytest.raises(UserCodeError, match=said):
        loss_of(torch.zeros(shape), 3, "it")


def test_what_is_no_number_is_an_error() -> None:
    with pytest.raises(UserCodeError, match="it that is no number"):
        loss_of("low", 3, "it")


class Each(Scale):
    """Its loss is the product of the weight and each input."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch).reshape(-1)


def test_a_training_step_with_a_value_for_each_sample_learns_from_their_mean() -> None:
    batches = [[0.25, 0.75], [0.5]]
    of_each, of_mean = Each(settings()), Scale(settings())
    assert train(of_each, batches) == train(of_mean, batches)
    assert weight(of_each) == weight(of_mean)


def test_a_plain_server_may_return_a_value_for_each_sample_of_a_batch() -> None:
    class Plain(StreamServer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return np.array(VALUES)

    union_batch, data = union_batch_of(VALUES)
    assert PlainStep(Plain(), SoloRanks()).run(union_batch, data, 0) == StepOutcome(loss=2.0)
