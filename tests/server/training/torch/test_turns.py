"""Ranks that come to different operations, in different orders or not at all, do them all together."""

from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

import numpy as np
import pytest
import torch

from stream_server.errors import PeerFailed
from stream_server.server.training.torch.turns import EQUAL_PASSES, MEAN, Script, Turn, Turns
from tests.fakes.thread_ranks import ThreadRanks, on_ranks

GATHER, REDUCE, OTHER = MEAN + 1, MEAN + 2, MEAN + 3
PASS = (GATHER, GATHER, REDUCE)


class Told:
    """The turns of a rank, and what it did in them: operations of its own, and of others that it served."""

    def __init__(self, ranks: ThreadRanks, most_parts: int = 100) -> None:
        self._ranks = ranks
        self.turns = Turns(ranks, self._add_up, most_parts=most_parts)
        self.turns.serve = lambda turn: self.done.append(("serves", turn.operation))
        self.turns.settle = lambda wanted: self.settled.append(wanted)
        self.done: list[tuple[str, int]] = []
        self.settled: list[Script] = []
        self.num_exchanges = 0

    def take(self, operation: int, parts: int = 1) -> Turn:
        turn = self.turns.take(operation, parts)
        self.done.append(("does", operation))
        return turn

    def go_through(self, operations: Iterable[int], *, learns: bool = True) -> tuple[list[tuple[str, int]], int]:
        """What this rank does in a pass of its `operations`, and how often the ranks ask each other in it."""
        self.done, self.num_exchanges = [], 0
        with self.turns.open(learns=learns):
            for operation in operations:
                self.take(operation)
        return self.done, self.num_exchanges

    def learn(self, operations: Iterable[int] = PASS) -> None:
        """Go through as many equal passes as make a script."""
        for _ in range(EQUAL_PASSES):
            self.go_through(operations)

    def _add_up(self, values: torch.Tensor) -> None:
        self.num_exchanges += 1
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
        with told.turns.open():
            return told.take(REDUCE, 1 << 64 + ranks.rank) if ranks.rank else Turn(0, 0, 0)

    _, one, other = on_ranks(3, work)
    assert one == other == Turn(REDUCE, parts=1 << 65 | 1 << 66, caller=1)


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


def does(*operations: int) -> list[tuple[str, int]]:
    return [("does", operation) for operation in operations]


def serves(*operations: int) -> list[tuple[str, int]]:
    return [("serves", operation) for operation in operations]


def test_after_equal_passes_the_ranks_ask_each_other_at_the_end_alone() -> None:
    def work(ranks: ThreadRanks) -> list[int]:
        told = Told(ranks)
        return [told.go_through(PASS)[1] for _ in range(EQUAL_PASSES + 2)]

    assert on_ranks(2, work) == [[len(PASS) + 1] * EQUAL_PASSES + [1, 1]] * 2


def test_a_rank_that_comes_to_something_else_serves_the_rest_of_the_script_first() -> None:
    def work(ranks: ThreadRanks) -> list[tuple[str, int]]:
        told = Told(ranks)
        told.learn()
        return told.go_through((GATHER, OTHER, REDUCE) if ranks.rank else PASS)[0]

    assert on_ranks(2, work) == [
        does(*PASS) + serves(OTHER, REDUCE),
        does(GATHER) + serves(GATHER, REDUCE) + does(OTHER, REDUCE),
    ]


def test_what_was_served_in_vain_is_told_at_the_end_and_ends_the_script() -> None:
    def work(ranks: ThreadRanks) -> tuple[list[Script], list[int]]:
        told = Told(ranks)
        told.learn()
        orders = [(GATHER,), PASS, PASS] if ranks.rank else [(GATHER, OTHER), PASS, PASS]
        return told.settled, [told.go_through(order)[1] for order in orders]

    wanted = ((GATHER, 1), (OTHER, 1))
    assert on_ranks(2, work) == [([wanted], [2, len(PASS) + 1, len(PASS) + 1])] * 2


def test_the_script_lasts_while_what_some_ranks_serve_is_wanted_by_others() -> None:
    def work(ranks: ThreadRanks) -> tuple[list[Script], list[int]]:
        told = Told(ranks)
        told.learn()
        return told.settled, [told.go_through(PASS if ranks.rank == rank else ())[1] for rank in (0, 1, 1, 0)]

    assert on_ranks(2, work) == [([], [1] * 4)] * 2


def test_ranks_that_take_turns_with_different_operations_follow_no_script() -> None:
    def work(ranks: ThreadRanks) -> list[int]:
        told = Told(ranks)
        experts = [OTHER, OTHER + 1]
        return [told.go_through((GATHER, experts[(ranks.rank + index) % 2]))[1] for index in range(2 * EQUAL_PASSES)]

    assert on_ranks(2, work) == [[4] * 2 * EQUAL_PASSES] * 2


def test_a_scripted_turn_has_the_parts_of_the_script_for_a_rank_with_fewer_and_is_not_that_of_one_with_others() -> None:
    def work(ranks: ThreadRanks) -> tuple[list[int], list[Script]]:
        told = Told(ranks)
        for _ in range(EQUAL_PASSES):
            with told.turns.open():
                told.take(REDUCE, 0b011)
        told.done = []
        with told.turns.open():
            turns = [told.take(REDUCE, 0b110 if ranks.rank else 0b001)]
        return [turn.parts for turn in turns], told.settled

    assert on_ranks(2, work) == [
        ([0b011], [((REDUCE, 0b001), (REDUCE, 0b110))]),
        ([0b110], [((REDUCE, 0b001), (REDUCE, 0b110))]),
    ]


def test_a_rank_that_raises_an_error_serves_the_rest_of_the_script_before_the_others_leave() -> None:
    def work(ranks: ThreadRanks) -> tuple[str, list[tuple[str, int]]]:
        told = Told(ranks)
        told.learn()
        told.done = []
        try:
            with told.turns.open():
                for operation in PASS:
                    told.take(operation)
                    if ranks.rank == 1:
                        raise ValueError("mine")
        except (ValueError, PeerFailed) as error:
            return type(error).__name__, told.done
        return "no error", told.done

    served = does(GATHER) + serves(GATHER, REDUCE)
    assert on_ranks(3, work) == [("PeerFailed", does(*PASS)), ("ValueError", served), ("PeerFailed", does(*PASS))]


@pytest.mark.parametrize("last", [(MEAN, REDUCE), (OTHER, MEAN, REDUCE)])
def test_before_a_mean_of_the_script_all_are_asked_and_what_else_they_want_ends_it(last: tuple[int, ...]) -> None:
    def work(ranks: ThreadRanks) -> tuple[list[tuple[str, int]], int]:
        told = Told(ranks)
        told.learn((GATHER, MEAN, REDUCE))
        return told.go_through((GATHER, *(last if ranks.rank else (MEAN, REDUCE))))

    follows = OTHER not in last
    told, other = on_ranks(2, work)
    assert told == (does(GATHER) + ([] if follows else serves(OTHER)) + does(MEAN, REDUCE), 2 if follows else 4)
    assert other == (does(GATHER, *last), told[1])


def test_passes_of_a_validation_have_a_script_of_their_own_whatever_modes_user_code_has_left() -> None:
    def work(ranks: ThreadRanks) -> list[int]:
        told, counts = Told(ranks), []
        with torch.set_grad_enabled(ranks.rank == 0):
            for _ in range(EQUAL_PASSES + 1):
                counts = [told.go_through(PASS)[1], told.go_through((GATHER,), learns=False)[1]]
        return counts

    assert on_ranks(2, work) == [[1, 1]] * 2


def test_what_is_served_while_user_code_is_in_inference_mode_is_not_done_in_it() -> None:
    def work(ranks: ThreadRanks) -> list[bool]:
        told, modes = Told(ranks), []
        told.turns.serve = lambda turn: modes.append(torch.is_inference_mode_enabled() or torch.is_grad_enabled())
        with told.turns.open(), torch.inference_mode():
            if ranks.rank:
                told.take(GATHER)
        return modes

    assert on_ranks(2, work) == [[False], []]


def test_an_error_of_a_rank_that_fails_is_not_replaced_by_one_of_what_it_then_serves() -> None:
    def work(ranks: ThreadRanks) -> str:
        told = Told(ranks)
        told.learn()

        def fail(turn: Turn) -> None:
            raise AssertionError("of serving")

        try:
            with told.turns.open():
                told.turns.serve = fail
                raise ValueError(f"mine, on rank {ranks.rank}")
        except ValueError as error:
            return str(error)

    assert on_ranks(2, work) == ["mine, on rank 0", "mine, on rank 1"]


def test_turns_may_be_taken_on_another_thread() -> None:
    def work(ranks: ThreadRanks) -> list[int]:
        told, counts = Told(ranks), []
        for _ in range(EQUAL_PASSES + 1):
            told.num_exchanges = 0
            with told.turns.open():
                told.take(GATHER)
                backward = Thread(target=told.take, args=(REDUCE,))
                backward.start()
                backward.join()
            counts.append(told.num_exchanges)
        return counts

    assert on_ranks(2, work) == [[3] * EQUAL_PASSES + [1]] * 2
