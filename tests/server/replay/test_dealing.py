"""Which rank of a replay is given which sample, in which order."""

from hypothesis import given
from hypothesis import strategies as st

from stream_server.messages.client import Routing, TimeSteps
from stream_server.server.replay.dealing import ReplayDealing, round_robin


def dealing(num_recorded: int, num_ranks: int, routing: Routing = Routing.STEPS) -> ReplayDealing:
    return ReplayDealing(
        num_recorded=num_recorded,
        num_ranks=num_ranks,
        routing=routing,
        time_steps=TimeSteps(num=None, first=10, every=5),
    )


def test_files_are_gone_through_in_turn_an_entry_of_each() -> None:
    assert list(round_robin([2, 0, 3], 0)) == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]
    assert list(round_robin([], 0)) == []


@given(st.lists(st.integers(0, 12), max_size=5), st.data())
def test_the_order_goes_on_from_every_position(lengths: list[int], data: st.DataObject) -> None:
    everything = list(round_robin(lengths, 0))
    assert len(everything) == sum(lengths)
    position = data.draw(st.integers(0, sum(lengths)))
    assert list(round_robin(lengths, position)) == everything[position:]


def test_as_many_ranks_as_were_recorded_have_a_file_each() -> None:
    same = dealing(3, 3)
    assert list(same.files(1)) == [1]
    assert same.owner(1, 7, 4) == 1


def test_another_number_of_ranks_is_dealt_by_the_routing() -> None:
    other = dealing(3, 2)
    assert list(other.files(1)) == [0, 1, 2]
    assert other.index(25) == 3
    assert [other.owner(0, 4, index) for index in range(3)] == [0, 1, 0]
    assert [dealing(3, 2, Routing.SIMULATIONS).owner(0, 4, index) for index in range(3)] == [0, 0, 0]
