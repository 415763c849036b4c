"""What becomes of steps that are all there: in which order they leave, what room they hold, what pressure they make."""

from itertools import count

import pytest

from stream_server.server.layout import Layout
from stream_server.server.ledger import Ledger
from stream_server.server.room import Room
from stream_server.server.settlement import Settlement
from stream_server.server.tracks import Run, Track

CREDIT = 4


class Desk:
    """A settlement, and the ledger and room that go with it."""

    def __init__(self, *, size: int = 8, max_fresh: int = 100) -> None:
        self.room = Room(size=size, credit=CREDIT)
        self.settlement = Settlement(self.room, max_fresh=max_fresh)
        self.ledger = Ledger()
        self._slots = count()

    def track(self, simulation: int, *, num_ranks: int = 1, attempt: int = 0) -> Track:
        layout = Layout(fields={}, num_ranks=num_ranks)
        marks = self.ledger[simulation]
        return Track(simulation=simulation, attempt=attempt, marks=marks, layout=layout, first=0, owed=None, total=None)

    def run(self, track: Track, *indices: int) -> Run:
        slots = [next(self._slots) for _ in indices]
        return Run(track, track.generation, range(indices[0], indices[-1] + 1), slots, (), [])

    def accept(self, track: Track, *indices: int) -> None:
        self.settlement.accept(self.run(track, *indices))

    @property
    def num_free(self) -> int:
        """How many simulations could be let in now."""
        tracks = [self.track(-1 - i) for i in range(self.room.size)]
        reserved = [track for track in tracks if self.room.reserve(track)]
        for track in reserved:
            self.room.release(track)
        return len(reserved)


def test_what_waited_in_an_earlier_epoch_leaves_first_and_in_its_order() -> None:
    desk = Desk()
    desk.settlement.wait_again(desk.ledger, [3, 1, 3])
    track = desk.track(2)
    assert desk.room.reserve(track)
    desk.accept(track, 0, 1)
    assert desk.settlement.num_waiting == 5
    assert desk.settlement.in_stream(3) == []
    assert (desk.settlement.num_waiting, track.num_waiting) == (2, 2)
    desk.settlement.in_stream(2)
    assert not desk.settlement.has_committed


def test_what_waited_in_an_earlier_epoch_holds_room_until_it_leaves() -> None:
    desk = Desk(size=2 * CREDIT)
    assert desk.num_free == 2
    desk.settlement.wait_again(desk.ledger, [0] * (CREDIT + 1))
    assert desk.num_free == 0
    desk.settlement.in_stream(1)
    assert desk.num_free == 1
    desk.settlement.in_stream(CREDIT)
    assert desk.num_free == 2


def test_more_may_have_waited_than_there_is_room_for_now() -> None:
    desk = Desk(size=CREDIT)
    desk.settlement.wait_again(desk.ledger, [0] * 10)
    for _ in range(10):
        assert desk.num_free == 0
        desk.settlement.in_stream(1)
    assert desk.num_free == 1


def test_what_waited_in_an_earlier_epoch_is_neither_news_nor_progress() -> None:
    desk = Desk(max_fresh=1)
    desk.settlement.wait_again(desk.ledger, [0] * 3)
    desk.settlement.in_stream(3)
    assert desk.settlement.changes() == []
    assert not desk.settlement.has_pressure


def test_what_is_withdrawn_does_not_wait_again() -> None:
    desk = Desk()
    desk.settlement.wait_again(desk.ledger, [1, 2, 1, 2, 2])
    desk.settlement.withdraw(2)
    assert desk.settlement.num_waiting == 2
    desk.settlement.in_stream(2)
    assert desk.num_free == 2


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_pressure_begins_when_a_client_rank_has_sent_more_than_it_may_keep_alone(num_ranks: int) -> None:
    desk = Desk(max_fresh=2)
    track = desk.track(0, num_ranks=num_ranks)
    for index in range(2 * num_ranks):
        desk.accept(track, index)
        assert not desk.settlement.has_pressure
    desk.accept(track, 2 * num_ranks)
    assert desk.settlement.has_pressure


def test_many_simulations_that_send_little_make_no_pressure() -> None:
    desk = Desk(max_fresh=2)
    for simulation in range(20):
        desk.accept(desk.track(simulation), 0, 1)
    assert not desk.settlement.has_pressure


def test_rejected_and_held_out_steps_make_pressure_too() -> None:
    for settle in (Settlement.set_apart, lambda it, run: it.reject(run, "nonfinite")):
        desk = Desk(max_fresh=1)
        settle(desk.settlement, desk.run(desk.track(0), 0, 1))
        assert desk.settlement.has_pressure
