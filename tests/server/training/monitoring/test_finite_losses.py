"""The losses of what updates its model itself."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_server.errors import UserCodeError
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.monitoring.finite_losses import FiniteLosses
from tests.fakes.thread_ranks import on_ranks
from tests.support.settings import settings

SPOILT = ", the last one too: the model may be spoilt"


def after(*losses: float | None, **training: Any) -> FiniteLosses:
    found = FiniteLosses(settings(**training).training)
    for number, loss in enumerate(losses):
        found.on_batch_end(None, None, number, loss)
    return found


def test_too_many_in_a_row_that_are_not_finite_end_the_study() -> None:
    after(math.nan, 1.0, math.inf, None, max_nonfinite=1)
    said = r"^the loss of batch 2 is not finite, like those of the 1 batches before, and training\.max_nonfinite is 1$"
    with pytest.raises(UserCodeError, match=said):
        after(0.5, math.nan, math.nan, max_nonfinite=1)
    with pytest.raises(UserCodeError, match=r"^the loss of batch 1 is not finite, and training\.nonfinite is stop$"):
        after(0.5, math.nan, nonfinite="stop")


def test_losses_of_which_none_is_finite_on_any_rank_have_taught_nothing() -> None:
    def end(ranks: Ranks, num_finite: int) -> str:
        losses = after(math.nan, *([1.0] if ranks.rank < num_finite else []))
        again = FiniteLosses(settings().training)
        again.load_state_dict(losses.state_dict())
        try:
            again.on_train_end(SimpleNamespace(all_reduce=UnionMean(ranks).mean))
        except UserCodeError as error:
            return str(error)
        return ""

    assert on_ranks(2, lambda ranks: end(ranks, 1)) == [""] * 2
    assert all(text.startswith("nothing was learned") for text in on_ranks(2, lambda ranks: end(ranks, 0)))


def test_a_training_without_losses_has_nothing_to_say() -> None:
    losses = after(None, None)
    losses.on_train_end(SimpleNamespace(all_reduce=lambda array: np.asarray(array)))
    assert losses.warnings == []


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0] * 99 + [math.nan, 1.0], []),
        ([1.0] * 98 + [math.nan, math.nan, 1.0], ["2 of 101 losses that training_step returned were not finite"]),
        ([1.0] * 200 + [math.nan], [f"1 of 201 losses that training_step returned were not finite{SPOILT}"]),
    ],
)
def test_more_than_a_small_part_or_the_last_one_is_a_warning(losses: list[float], expected: list[str]) -> None:
    assert after(*losses).warnings == expected
