"""A rank without a batch runs no user code, so its learner is behind: it is brought up before it next takes part."""

from typing import Any

import numpy as np
import pytest

from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.plain_step import PlainStep
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.server.user.test_stream_server import Linear, union_batch_of, union_data
from tests.support.settings import settings

STEPS = [[2, 2], [0, 4], [3, 1], [4, 0], [1, 3]]


def test_a_learner_that_missed_steps_goes_on_as_if_it_had_taken_them() -> None:
    x, y = union_data(sum(map(sum, STEPS)))

    def train(ranks: ThreadRanks) -> Any:
        server, start = Linear(settings()), 0
        server.union_mean = UnionMean(ranks)
        with PlainStep(server, ranks) as step:
            for number, sizes in enumerate(STEPS):
                first = start + sum(sizes[: ranks.rank])
                rows = slice(first, first + sizes[ranks.rank])
                step.run(union_batch_of(sizes, ranks.rank), (x[rows], y[rows]), number)
                start += sum(sizes)
        return server.weight

    alone, start = Linear(settings()), 0
    with PlainStep(alone, SoloRanks()) as step:
        for number, sizes in enumerate(STEPS):
            rows = slice(start, start + sum(sizes))
            step.run(union_batch_of([sum(sizes)], 0), (x[rows], y[rows]), number)
            start += sum(sizes)
    for weight in on_ranks(2, train):
        np.testing.assert_allclose(weight, alone.weight, rtol=1e-12)


@pytest.mark.parametrize("last", [[0, 4], [4, 0]], ids=str)
def test_a_learner_that_missed_the_last_step_is_brought_up_at_the_end(last: list[int]) -> None:
    x, y = union_data(4)

    def train(ranks: ThreadRanks) -> Any:
        server = Linear(settings())
        server.union_mean = UnionMean(ranks)
        with PlainStep(server, ranks) as step:
            step.run(union_batch_of(last, ranks.rank), (x, y), 0)
            step.finish()
        return server.weight

    one, other = on_ranks(2, train)
    np.testing.assert_array_equal(one, other)
