"""A tracker that goes on with what an earlier epoch had settled."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.client_api.bits import Bits
from stream_server.client_api.messages import Ack, End, FieldSpec, Reason, Refusal
from stream_server.server.plain_state import from_bytes, to_bytes
from stream_server.server.tracker import Tracker
from stream_server.server.tracks import Connection, Run
from tests.server.trackers import U, block, data, make, opened, opening, send

Who = tuple[int, int]

TOTAL = 9


class World:
    """Simulations of some client ranks each that send what the tracker does not know, one step after the other.

    The steps of a simulation whose index is divisible by 4 are not fit to be trained on.
    """

    def __init__(self, *, num_simulations: int, num_clients: int, credit: int, room: int, capacity: int) -> None:
        self.num_clients = num_clients
        self.credit = credit
        self.room = room
        self.capacity = capacity
        self.who = [(simulation, rank) for simulation in range(num_simulations) for rank in range(num_clients)]
        self.epoch = 0
        self.settled: Counter[tuple[int, int]] = Counter()
        self.backlog: list[int] = []
        self.population = 0
        self.tracker = self._begin()

    def _begin(self) -> Tracker:
        tracker = make(num=TOTAL, credit=self.credit, room=self.room, epoch=self.epoch)
        self.clients: dict[Who, Connection] = {}
        self.to_send: dict[Who, list[int]] = {}
        self.on_the_way: dict[Who, list[int]] = {}
        return tracker

    def restart(self) -> None:
        """The server dies, and the next one takes back what was settled and what waits for room."""
        state = from_bytes(to_bytes(self.tracker.state_dict()))
        self.epoch += 1
        self.tracker = self._begin()
        self.tracker.load_state_dict(state)
        self.tracker.settlement.wait_again(self.tracker.ledger, self.backlog)

    def begin(self) -> None:
        for simulation in {simulation for simulation, _ in self.who}:
            self.tracker.begin(simulation, 0, goes_on=self.epoch > 0)

    @property
    def moves(self) -> list[tuple[Any, ...]]:
        """What can happen next; nothing: all is done."""
        moves: list[tuple[Any, ...]] = []
        for who in self.who:
            client = self.clients.get(who)
            if client is None:
                moves += [("open", who)] * (not self._waits(who))
            elif self.to_send[who]:
                sent = self.on_the_way[who] = [
                    sequence for sequence in self.on_the_way[who] if sequence >= self.tracker.ack(client).received
                ]
                moves += [("send", who)] * (len(sent) < self.credit)
        moves += [("admit",)] * (bool(self.backlog) and self.population < self.capacity)
        moves += [("draw",)] * (self.population > 0)
        return moves

    def make(self, move: tuple[Any, ...]) -> None:
        match move:
            case ("open", who):
                self._let_in(who, self.tracker.open(str(who).encode(), self._opening(who)))
            case ("send", who):
                self._send(who)
            case ("admit",):
                self.tracker.settlement.in_stream(1)
                self.backlog.pop(0)
                self.population += 1
            case ("draw",):
                self.population -= 1
        for peer, answer in self.tracker.come_in():
            self._let_in(next(who for who in self.who if str(who).encode() == peer), answer)

    def _opening(self, who: Who) -> Any:
        simulation, rank = who
        first, stop = 4 * rank // self.num_clients, 4 * (rank + 1) // self.num_clients
        return opening(
            block(start=first, num=stop - first),
            simulation=simulation,
            epoch=self.epoch,
            rank=rank,
            num_ranks=self.num_clients,
        )

    def _waits(self, who: Who) -> bool:
        return str(who).encode() in self.tracker.openings.waiting

    def _let_in(self, who: Who, answer: Connection | Refusal | None) -> None:
        assert not isinstance(answer, Refusal), answer
        if answer is not None:
            known = Bits(self.tracker.opened(answer).known)
            self.clients[who] = answer
            self.to_send[who] = [index for index in range(TOTAL) if index not in known]
            self.on_the_way[who] = []

    def _send(self, who: Who) -> None:
        client, index = self.clients[who], self.to_send[who].pop(0)
        self.on_the_way[who].append(client.next_sequence)
        message = data(client, index)
        placed = self.tracker.assembly.place(client, message)
        assert not isinstance(placed, Refusal), placed
        runs = [placed] if isinstance(placed, Run) else self.tracker.assembly.arrived(client, message, placed)
        assert not isinstance(runs, Refusal), runs
        for run in runs:
            self.settled[who[0], index] += 1
            if index % 4:
                self.tracker.settlement.accept(run)
                self.backlog.append(who[0])
            else:
                self.tracker.settlement.reject(run, "nonfinite")


@settings(max_examples=100)
@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.integers(2, 4), st.integers(1, 2), st.integers(1, 3))
def test_each_step_is_settled_once_wherever_the_server_was_started_again(
    choices: st.DataObject, num_simulations: int, num_clients: int, credit: int, num_at_once: int, capacity: int
) -> None:
    world = World(
        num_simulations=num_simulations,
        num_clients=num_clients,
        credit=credit,
        room=credit * num_at_once,
        capacity=capacity,
    )
    world.begin()
    num_restarts = choices.draw(st.integers(0, 3))
    while moves := world.moves:
        if num_restarts and choices.draw(st.integers(0, 9)) == 0:
            num_restarts -= 1
            world.restart()
            world.begin()
            continue
        world.make(choices.draw(st.sampled_from(moves)))
    tracker = world.tracker
    expected = {(simulation, index): 1 for simulation in range(num_simulations) for index in range(TOTAL)}
    assert world.settled == expected
    for simulation in range(num_simulations):
        marks = tracker.ledger[simulation]
        assert (marks.num_accepted, marks.reasons) == (6, {"nonfinite": 3})
        track = tracker.track(simulation)
        assert track is not None
        assert track.complete
        assert marks.complete
    assert tracker.ledger.duplicates == 0
    assert tracker.num_under_way == 0
    assert not tracker.refused


def test_half_assembled_steps_are_not_in_the_state_and_come_again() -> None:
    tracker = make()
    tracker.begin(0, 0)
    ends = [opened(tracker, opening(block(start=2 * r, num=2), rank=r, num_ranks=2)) for r in range(2)]
    send(tracker, ends[0], data(ends[0], 0))
    send(tracker, ends[0], data(ends[0], 1))
    send(tracker, ends[1], data(ends[1], 0))
    other = make(epoch=1)
    other.load_state_dict(tracker.state_dict())
    other.begin(0, 0, goes_on=True)
    ends = [opened(other, opening(block(start=2 * r, num=2), epoch=1, rank=r, num_ranks=2)) for r in range(2)]
    assert [other.opened(end).known for end in ends] == [b"\x01", b"\x01"]
    assert send(other, ends[0], data(ends[0], 1)) == 0
    assert send(other, ends[1], data(ends[1], 1)) == 1


def test_a_client_of_an_earlier_epoch_is_not_let_in() -> None:
    tracker = make(epoch=2)
    tracker.begin(0, 0)
    refusal = tracker.open(b"p", opening(block(), epoch=1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STALE_EPOCH
    assert tracker.refused == {"stale_epoch": 1}


def test_a_share_that_is_whole_stays_whole_and_needs_no_room() -> None:
    tracker = make(num=2)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    send(tracker, client, data(client, 0, num_steps=2))
    other = make(num=2, epoch=1, credit=4, room=4)
    other.load_state_dict(tracker.state_dict())
    other.begin(0, 0, goes_on=True)
    (share,) = other.settlement.changes()
    assert (share.complete, share.accepted, share.received) == (True, 2, 0)
    opened(other, opening(block(), epoch=1))
    other.begin(1, 0)
    assert isinstance(other.open(b"p", opening(block(), simulation=1, epoch=1)), Connection)


def test_the_end_of_a_simulation_that_goes_on_may_come_to_the_next_server() -> None:
    tracker = make(num=None)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    send(tracker, client, data(client, 0, num_steps=3))
    other = make(num=None, epoch=1)
    other.load_state_dict(tracker.state_dict())
    other.begin(0, 0, goes_on=True)
    client = opened(other, opening(block(), epoch=1))
    assert not other.ledger[0].complete
    assert other.finished_sending(client, End(simulation=0, attempt=0, epoch=1, share=3, total=3)) is None
    assert other.ack(client) == Ack(received=0, durable=0, ended=True)
    assert (other.ledger[0].complete, other.ledger[0].total, other.ledger.duplicates) == (True, 3, 0)


def test_the_types_of_fields_are_those_of_the_first_simulation_for_ever() -> None:
    untyped = FieldSpec(name="u", shape=(4,))
    tracker = make(fields=[untyped])
    tracker.begin(0, 0)
    opened(tracker, opening(block()))
    other = make(fields=[untyped], epoch=1)
    assert not other.openings.dtypes_known
    other.load_state_dict(from_bytes(to_bytes(tracker.state_dict())))
    assert other.openings.dtypes == tracker.openings.dtypes
    assert other.openings.dtypes_known


def test_what_was_refused_is_counted_on() -> None:
    tracker = make(fields=[U])
    tracker.refuse(Reason.CHECKSUM, "")
    other = make(fields=[U])
    other.load_state_dict(from_bytes(to_bytes(tracker.state_dict())))
    other.refuse(Reason.CHECKSUM, "")
    assert other.refused == {"checksum": 2}


def test_pressure_ends_with_a_checkpoint_and_begins_anew_with_what_comes_after_it() -> None:
    tracker = make(num=20, credit=8, max_fresh=3)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    for first in (0, 4):
        for index in range(first, first + 3):
            send(tracker, client, data(client, index))
            assert not tracker.settlement.has_pressure
        send(tracker, client, data(client, first + 3))
        assert tracker.settlement.has_pressure
        tracker.saved()
        assert not tracker.settlement.has_pressure
