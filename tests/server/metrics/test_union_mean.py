"""Calls that ranks with a batch announce to those without one."""

import numpy as np
import pytest

from stream_server.errors import UserCodeError
from stream_server.server.metrics.union_mean import UnionMean, _describe
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from tests.fakes.thread_ranks import on_ranks


class LowestFirst:
    """The turns of ranks that come to means alone, of which rank 0 announces each."""

    def take_mean(self) -> int:
        return 0


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


@pytest.mark.parametrize("sizes", [[2, 0, 1], [2, 1, 1]], ids=["no batch", "an ended step"])
def test_means_that_differ_in_turns_are_the_same_error_on_all_ranks(sizes: list[int]) -> None:
    def train(ranks: Ranks) -> str:
        union_mean = UnionMean(ranks)
        try:
            with union_mean.in_turns(LowestFirst()):
                with union_mean.step(sizes):
                    if ranks.rank != 1:
                        union_mean.mean(np.ones(2 if ranks.rank == 0 or sizes[1] else 3))
                if ranks.rank == 1:
                    union_mean.join(0)
        except UserCodeError as error:
            return str(error)
        return "no error"

    told = on_ranks(3, train)
    assert set(told) == {told[0]}
    what = (
        "rank 1 made no further call" if sizes[1] else "rank 2 made an all_reduce of arrays of shapes [[3]] as float64"
    )
    assert told[0].endswith(f"but rank 0 made an all_reduce of arrays of shapes [[2]] as float64 where {what}")


@pytest.mark.parametrize("which", [np.ones((2, 3)), np.ones(6, np.float32)], ids=["shape", "type"])
def test_arrays_that_differ_are_the_same_error_on_all_ranks_also_outside_of_a_step(which: object) -> None:
    def reduce(ranks: Ranks) -> str:
        with pytest.raises(UserCodeError, match="rank 0 made an all_reduce of arrays of shapes") as error:
            UnionMean(ranks).mean(which if ranks.rank else np.ones(6))
        return str(error.value)

    told = on_ranks(2, reduce)
    assert told[0] == told[1]


@pytest.mark.parametrize("more", [0, 1])
def test_another_number_of_means_in_a_step_where_all_ranks_have_a_batch_is_an_error(more: int) -> None:
    def train(ranks: Ranks) -> str:
        union_mean = UnionMean(ranks)
        try:
            with union_mean.step([2, 2]):
                for _ in range(2 if ranks.rank == more else 1):
                    union_mean.mean(np.ones(2))
        except UserCodeError as error:
            return str(error)
        return "no error"

    told = on_ranks(2, train)
    assert "no further call" in told[1]
    assert told[0] == ("no error" if more else told[1])


def test_a_rank_without_a_batch_joins_means_in_turns_whatever_the_turns_before() -> None:
    def train(ranks: Ranks) -> float:
        union_mean = UnionMean(ranks)
        for _ in range(2):
            with union_mean.in_turns(LowestFirst()), union_mean.step([1, 1]):
                pass
        with union_mean.in_turns(LowestFirst()):
            if ranks.rank == 1:
                union_mean.join(0)
                return 3.0
            return union_mean.mean(3.0)

    assert on_ranks(2, train) == [3.0, 3.0]
