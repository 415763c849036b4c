"""Ranks that come to different operations, in different orders or not at all, do them all together."""

from contextlib import suppress

import numpy as np
import pytest
import torch

from stream_server.errors import PeerFailed
from stream_server.server.training.torch.turns import MEAN, Turn, Turns
from tests.fakes.thread_ranks import ThreadRanks, on_ranks

GATHER, REDUCE = MEAN + 1, MEAN + 2


class Told:
    """The turns of a rank, and what it did in them: operations of its own, and of others that it served."""

    def __init__(self, ranks: ThreadRanks, most_parts: int = 100) -> None:
        self._ranks = ranks
        self.turns = Turns(ranks, self._add_up, most_parts=most_parts)
        self.turns.serve = lambda turn: self.done.append(("serves", turn.operation))
        self.done: list[tuple[str, int]] = []

    def take(self, operation: int, parts: tuple[bool, ...] = ()) -> Turn:
        turn = self.turns.take(operation, parts)
        self.done.append(("does", operation))
        return turn

    def _add_up(self, values: torch.Tensor) -> None:
        values.copy_(torch.from_numpy(self._ranks.sum(values.numpy().astype(np.int64))))


def test_a_rank_that_does_nothing_serves_all_that_others_do() -> None:
    def work(ranks: ThreadRanks) -> list[tuple[str, int]]:
        told = Told(ranks)
        with told.turns.open():
            for operation in (GATHER, REDUCE, GATHER) if ranks.rank == 1 else ():
                told.take(operation)
        return told.done

    idle, busy = on_ranks(2, work)
    assert busy == [("does", GATHER), ("does", REDUCE), ("does", GATHER)]
    assert idle == [("serves", GATHER), ("serves", REDUCE), ("serves", GATHER)]


def test_operations_in_different_orders_are_done_one_after_the_other_on_all_ranks() -> None:
    orders = [(GATHER, REDUCE), (REDUCE, GATHER, GATHER), (MEAN,)]

    def work(ranks: ThreadRanks) -> list[tuple[str, int]]:
        told = Told(ranks)
        with told.turns.open():
            for operation in orders[ranks.rank]:
                told.take(operation)
        return told.done

    done = on_ranks(3, work)
    assert len({tuple(operation for _, operation in of_rank) for of_rank in done}) == 1
    for of_rank, order in zip(done, orders, strict=True):
        assert [operation for what, operation in of_rank if what == "does"] == list(order)


def test_a_turn_has_the_parts_of_all_that_want_it_and_its_lowest_rank() -> None:
    def work(ranks: ThreadRanks) -> Turn:
        told = Told(ranks, most_parts=70)
        parts = tuple(index == 64 + ranks.rank for index in range(70))
        with told.turns.open():
            return told.take(REDUCE, parts) if ranks.rank else Turn(0, 0, [])

    _, one, other = on_ranks(3, work)
    assert one == other
    assert one.caller == 1
    assert [index for index, is_in in enumerate(one.parts) if is_in] == [65, 66]


def test_the_others_leave_when_a_rank_raises_an_error() -> None:
    def work(ranks: ThreadRanks) -> str:
        told = Told(ranks)
        try:
            with told.turns.open():
                if ranks.rank == 1:
                    raise ValueError("mine")
                told.take(GATHER)
        except (ValueError, PeerFailed) as error:
            return type(error).__name__
        return "no error"

    assert on_ranks(3, work) == ["PeerFailed", "ValueError", "PeerFailed"]


def test_what_is_done_while_serving_or_outside_takes_no_turn() -> None:
    def work(ranks: ThreadRanks) -> list[tuple[str, int]]:
        told = Told(ranks)
        told.turns.serve = lambda turn: told.take(turn.operation) and None
        told.take(GATHER)
        with told.turns.open():
            if ranks.rank:
                told.take(REDUCE)
        return told.done

    assert on_ranks(2, work) == [[("does", GATHER), ("does", REDUCE)]] * 2


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_comes_at_the_end_is_done_by_all(num_ranks: int) -> None:
    def work(ranks: ThreadRanks) -> int:
        ended: list[int] = []
        with Told(ranks).turns.open(lambda: ended.append(1)):
            pass
        return len(ended)

    assert on_ranks(num_ranks, work) == [1] * num_ranks


def test_a_mean_waits_for_all_that_are_to_have_a_part_in_it() -> None:
    orders = [(MEAN,), (GATHER, MEAN), ()]

    def work(ranks: ThreadRanks) -> list[tuple[str, int]]:
        told = Told(ranks)
        with told.turns.open():
            for operation in orders[ranks.rank]:
                told.take(operation)
        return told.done

    assert on_ranks(3, work) == [
        [("serves", GATHER), ("does", MEAN)],
        [("does", GATHER), ("does", MEAN)],
        [("serves", GATHER), ("serves", MEAN)],
    ]


def test_an_error_that_user_code_has_caught_lets_nobody_wait() -> None:
    def work(ranks: ThreadRanks) -> str:
        told = Told(ranks)
        try:
            with told.turns.open():
                if ranks.rank == 1:
                    raise ValueError("mine")
                with suppress(PeerFailed):
                    told.take(GATHER)
        except (PeerFailed, ValueError) as error:
            return type(error).__name__
        return "nothing"

    assert on_ranks(2, work) == ["PeerFailed", "ValueError"]
