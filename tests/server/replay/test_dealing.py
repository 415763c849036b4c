"""Which rank of a replay is given which sample, in which order."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_server.messages.client import Routing, TimeSteps
from stream_server.messages.routing import Dealing
from stream_server.server.replay.dealing import ReplayDealing
from stream_server.server.replay.record_format import HEAD, EntryKind, Heads


class Heard:
    """The heads of a file's entries, in blocks of two."""

    def __init__(self, *entries: tuple[EntryKind, int, int]) -> None:
        self.of_all = np.array([(*entry, 0, 0, 0) for entry in entries], HEAD)

    def __len__(self) -> int:
        return len(self.of_all)

    def heads(self) -> Iterator[tuple[int, Heads]]:
        for begin in range(0, len(self.of_all), 2):
            yield begin, self.of_all[begin : begin + 2]


def samples(*keys: tuple[int, int]) -> Heard:
    return Heard(*((EntryKind.SAMPLE, *key) for key in keys))


def dealing(num_recorded: int, num_ranks: int, routing: Routing = Routing.STEPS) -> ReplayDealing:
    return ReplayDealing(
        num_recorded=num_recorded,
        dealing=Dealing(routing, num_ranks),
        time_steps=TimeSteps(num=None, first=10, every=5),
    )


def places(of: ReplayDealing, rank: int, files: Sequence[Heard], wanted: Sequence[int], position: int = 0) -> list[Any]:
    return list(of.places(rank, cast(Any, files), wanted, position))


def test_files_are_gone_through_in_turn_an_entry_of_each() -> None:
    files = [samples((0, 10), (0, 15)), samples(), samples((1, 10), (1, 15), (1, 20))]
    assert places(dealing(3, 1), 0, files, [0, 1]) == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]
    assert places(dealing(0, 1), 0, [], [0, 1]) == []


@given(st.lists(st.integers(0, 12), max_size=5), st.sets(st.integers(0, 4)), st.data())
def test_the_order_goes_on_from_every_position(lengths: list[int], wanted: set[int], data: st.DataObject) -> None:
    files = [samples(*((file, 10 + 5 * step) for step in range(length))) for file, length in enumerate(lengths)]
    everything = places(dealing(len(files), 1), 0, files, sorted(wanted))
    assert len(everything) == sum(lengths)
    position = data.draw(st.integers(0, sum(lengths)))
    assert places(dealing(len(files), 1), 0, files, sorted(wanted), position) == everything[position:]


def test_whole_blocks_before_a_position_are_not_looked_at() -> None:
    class Unreadable(Heard):
        """Of the first four entries only the number is known."""

        def heads(self) -> Iterator[tuple[int, Any]]:
            return ((begin, range(2) if begin < 4 else heads) for begin, heads in super().heads())

    files = [Unreadable(*((EntryKind.SAMPLE, 1, 10) for _ in range(7))) for _ in range(2)]
    assert places(dealing(2, 1), 0, files, [1], 11) == [(1, 5), (0, 6), (1, 6)]


def test_entries_are_passed_over_but_for_wanted_samples_and_ends() -> None:
    file = Heard(
        (EntryKind.PARAMETERS, 1, 0),
        (EntryKind.SAMPLE, 1, 10),
        (EntryKind.HELD_OUT, 2, 10),
        (EntryKind.FINISHED, 2, 0),
        (EntryKind.SAMPLE, 2, 15),
    )
    assert places(dealing(1, 1), 0, [file], [1]) == [None, (0, 1), None, (0, 3), None]
    assert places(dealing(1, 1), 0, [file], [2]) == [None, None, (0, 2), (0, 3), (0, 4)]


def test_as_many_ranks_as_were_recorded_have_a_file_each() -> None:
    same, files = dealing(3, 3), [samples((7, 10)), samples((7, 15)), samples((7, 20))]
    assert places(same, 1, files, [7]) == [(1, 0)]
    assert same.owners(1, files[1].of_all).tolist() == [1]


def test_another_number_of_ranks_is_dealt_by_the_routing() -> None:
    other, steps = dealing(3, 2), samples((4, 10), (4, 15), (4, 20))
    assert other.time_steps.index(25) == 3
    assert other.owners(0, steps.of_all).tolist() == [0, 1, 0]
    assert places(other, 1, [steps, samples(), samples()], [4]) == [None, (0, 1), None]
    assert dealing(3, 2, Routing.SIMULATIONS).owners(0, steps.of_all).tolist() == [0, 0, 0]
