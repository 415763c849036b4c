"""Calls that ranks with a batch announce to those without one."""

import numpy as np
import pytest

from stream_server.errors import UserCodeError
from stream_server.server.metrics.union_mean import UnionMean, _describe
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from tests.fakes.thread_ranks import on_ranks


def test_each_step_counts_the_calls_that_ranks_without_a_batch_join() -> None:
    def train(ranks: Ranks) -> list[int]:
        union_mean, counts = UnionMean(ranks), []
        for sizes, num_calls in (([2, 0], 2), ([0, 3], 1), ([1, 1], 1)):
            with union_mean.step(sizes):
                for _ in range(num_calls if sizes[ranks.rank] else 0):
                    union_mean.mean(np.ones(3))
            counts.append(union_mean.num_joined)
        return counts

    assert on_ranks(2, train) == [[2, 1, 0], [2, 1, 0]]


def test_a_call_for_every_rank_is_refused_in_a_step_alone() -> None:
    union_mean = UnionMean(SoloRanks())
    union_mean.check_call("save_model", in_steps=False)
    with union_mean.step([3]):
        union_mean.check_call("all_reduce")
        with pytest.raises(UserCodeError, match="save_model must be called on every rank, as in on_step_end"):
            union_mean.check_call("save_model", in_steps=False)
    union_mean.check_call("save_model", in_steps=False)


def test_a_call_is_described_by_its_name_or_as_a_mean_of_shapes() -> None:
    assert _describe(["a step of optimizer 1"]) == "a step of optimizer 1"
    assert _describe([[[2], [3, 4]], "float32"]) == "an all_reduce of arrays of shapes [[2], [3, 4]] as float32"
    assert _describe(None) == "no further call"
