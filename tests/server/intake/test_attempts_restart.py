"""An intake that goes on with what an earlier incarnation had settled."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.client_api.retention import Bits
from stream_server.messages.client import Ack, End, FieldSpec, Reason, Refusal
from stream_server.server.intake.attempts import Connection
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.intakes import ClientIntake, U, answer_to, block, complete, data, make, opened, opening, send
from tests.support.examples import examples

Who = tuple[int, int]

TOTAL = 9


class World:
    """Simulations of some client ranks each that send what the intake does not know, one step after the other.

    The steps of a simulation whose index is divisible by 4 are not fit to be trained on.
    """

    def __init__(self, *, num_simulations: int, num_clients: int, credit: int, room: int, capacity: int) -> None:
        self.num_clients = num_clients
        self.credit = credit
        self.room = room
        self.capacity = capacity
        self.who = [(simulation, rank) for simulation in range(num_simulations) for rank in range(num_clients)]
        self.incarnation = 0
        self.settled: Counter[tuple[int, int]] = Counter()
        self.backlog: list[int] = []
        self.population = 0
        self.intake = self._begin()

    def _begin(self) -> ClientIntake:
        intake = make(num=TOTAL, credit=self.credit, credit_slots=self.room, incarnation=self.incarnation)
        self.clients: dict[Who, Connection] = {}
        self.to_send: dict[Who, list[int]] = {}
        self.on_the_way: dict[Who, list[int]] = {}
        return intake

    def restart(self) -> None:
        """The server dies, and the next one takes back what was settled and what waits for room."""
        state = from_bytes(to_bytes(self.intake.state_dict()))
        self.incarnation += 1
        self.intake = self._begin()
        self.intake.load_state_dict(state)
        self.intake.restore_waiting(self.backlog)

    def begin(self) -> None:
        for simulation in {simulation for simulation, _ in self.who}:
            self.intake.begin_attempt(simulation, 0, goes_on=self.incarnation > 0)

    @property
    def moves(self) -> list[tuple[Any, ...]]:
        """The moves that are possible next; none: all is done."""
        moves: list[tuple[Any, ...]] = []
        for who in self.who:
            client = self.clients.get(who)
            if client is None:
                moves += [("open", who)] * (not self._waits(who))
            elif self.to_send[who]:
                sent = self.on_the_way[who] = [
                    sequence for sequence in self.on_the_way[who] if sequence >= client.ack().received
                ]
                moves += [("send", who)] * (len(sent) < self.credit)
        moves += [("admit",)] * (bool(self.backlog) and self.population < self.capacity)
        moves += [("draw",)] * (self.population > 0)
        return moves

    def make(self, move: tuple[Any, ...]) -> None:
        match move:
            case ("open", who):
                self._let_in(who, answer_to(self.intake, str(who).encode(), self._opening(who)))
            case ("send", who):
                self._send(who)
            case ("admit",):
                self.intake.settlement.in_stream(1)
                self.backlog.pop(0)
                self.population += 1
            case ("draw",):
                self.population -= 1
        waiting = [who for who in self.who if self._waits(who)]
        self.intake.dispatcher.end_turn()
        for who in waiting:
            self._let_in(who, self.intake.dispatcher.connections.get(str(who).encode()))

    def _opening(self, who: Who) -> Any:
        simulation, rank = who
        first, stop = 4 * rank // self.num_clients, 4 * (rank + 1) // self.num_clients
        return opening(
            block(start=first, num=stop - first),
            simulation=simulation,
            incarnation=self.incarnation,
            rank=rank,
            num_ranks=self.num_clients,
        )

    def _waits(self, who: Who) -> bool:
        return str(who).encode() in self.intake.dispatcher.admission.waiting

    def _let_in(self, who: Who, answer: Connection | Refusal | None) -> None:
        assert not isinstance(answer, Refusal), answer
        if answer is not None:
            known = Bits(answer.attempt.packed_known())
            self.clients[who] = answer
            self.to_send[who] = [index for index in range(TOTAL) if index not in known]
            self.on_the_way[who] = []

    def _send(self, who: Who) -> None:
        client, index = self.clients[who], self.to_send[who].pop(0)
        self.on_the_way[who].append(client.next_sequence)
        message = data(client, index)
        runs = complete(self.intake, client, message)
        assert not isinstance(runs, Refusal), runs
        for run in runs:
            self.settled[who[0], index] += 1
            if index % 4:
                self.intake.settlement.accept(run)
                self.backlog.append(who[0])
            else:
                self.intake.settlement.reject(run)


@settings(max_examples=examples(100))
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
    intake = world.intake
    expected = {(simulation, index): 1 for simulation in range(num_simulations) for index in range(TOTAL)}
    assert world.settled == expected
    for simulation in range(num_simulations):
        entry = intake.state.ledger[simulation]
        assert (entry.num_accepted, entry.reasons) == (6, {"nonfinite": 3})
        attempt = intake.attempt(simulation)
        assert attempt is not None
        assert attempt.share_complete
        assert entry.complete
    assert intake.state.ledger.duplicates == 0
    assert intake.num_under_way == 0
    assert not intake.state.refused


def test_half_assembled_steps_are_not_in_the_state_and_come_again() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    ends = [opened(intake, opening(block(start=2 * r, num=2), rank=r, num_ranks=2)) for r in range(2)]
    send(intake, ends[0], data(ends[0], 0))
    send(intake, ends[0], data(ends[0], 1))
    send(intake, ends[1], data(ends[1], 0))
    other = make(incarnation=1)
    other.load_state_dict(intake.state_dict())
    other.begin_attempt(0, 0, goes_on=True)
    ends = [opened(other, opening(block(start=2 * r, num=2), incarnation=1, rank=r, num_ranks=2)) for r in range(2)]
    assert [end.attempt.packed_known().hex() for end in ends] == ["01", "01"]
    assert send(other, ends[0], data(ends[0], 1)) == 0
    assert send(other, ends[1], data(ends[1], 1)) == 1


def test_a_client_of_an_earlier_incarnation_is_not_let_in() -> None:
    intake = make(incarnation=2)
    intake.begin_attempt(0, 0)
    refusal = answer_to(intake, b"p", opening(block(), incarnation=1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STALE_INCARNATION
    assert intake.state.refused == {"stale_incarnation": 1}


def test_a_share_that_is_whole_stays_whole_and_needs_no_room() -> None:
    intake = make(num=2)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0, num_steps=2))
    other = make(num=2, incarnation=1, credit=4, credit_slots=4)
    other.load_state_dict(intake.state_dict())
    other.begin_attempt(0, 0, goes_on=True)
    (share,) = other.changes()
    assert (share.complete, share.accepted, share.received) == (True, 2, 0)
    opened(other, opening(block(), incarnation=1))
    other.begin_attempt(1, 0)
    assert isinstance(answer_to(other, b"p", opening(block(), simulation=1, incarnation=1)), Connection)


def test_the_end_of_a_simulation_that_goes_on_may_come_to_the_next_server() -> None:
    intake = make(num=None)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0, num_steps=3))
    other = make(num=None, incarnation=1)
    other.load_state_dict(intake.state_dict())
    other.begin_attempt(0, 0, goes_on=True)
    client = opened(other, opening(block(), incarnation=1))
    assert not other.state.ledger[0].complete
    assert other.assembly.finish(client, End(simulation=0, attempt=0, incarnation=1, share=3, total=3)) is None
    assert client.ack() == Ack(received=0, durable=0, ended=True)
    assert (other.state.ledger[0].complete, other.state.ledger[0].total, other.state.ledger.duplicates) == (True, 3, 0)


class Told:
    """A recording of which only what it is told of simulations is kept."""

    def __init__(self) -> None:
        self.finished: list[int] = []

    def append(self, slots: Sequence[int]) -> None:
        pass

    def append_held_out(self, slots: Sequence[int]) -> None:
        pass

    def finish(self, simulation: int) -> None:
        self.finished.append(simulation)

    def end_trajectory(self, simulation: int, time_step: int) -> None:
        pass

    def withdraw(self, simulation: int) -> None:
        pass

    def position(self) -> int | None:
        raise NotImplementedError

    def sync(self, position: int | None) -> int | None:
        raise NotImplementedError


def restarted(intake: ClientIntake, *, finished: list[int]) -> tuple[ClientIntake, Told, list[int]]:
    """The next incarnation, what its recorder hears, and of which simulations it has only now heard that they ended."""
    other, told = make(num=2, incarnation=intake.state.incarnation + 1, validation=ValidationStore(1)), Told()
    other.settlement.recorder = told
    other.load_state_dict(from_bytes(to_bytes(intake.state_dict())))
    return other, told, other.restore_ended(finished=finished, invalid=[])


@pytest.mark.parametrize("simulation", [0, 1], ids=["held out", "trained on"])
def test_a_simulation_of_which_all_had_come_before_the_ranks_agreed_on_its_end_finishes_after_the_restart(
    simulation: int,
) -> None:
    intake = make(num=2, validation=ValidationStore(1))
    intake.begin_attempt(simulation, 0)
    send(intake, client := opened(intake, opening(block(), simulation=simulation)), data(client, 0, num_steps=2))
    intake, told, news = restarted(intake, finished=[simulation])
    assert told.finished == news == [simulation]
    assert intake.settlement.validation.freeze().complete == ((0,) if simulation == 0 else ())
    intake, told, news = restarted(intake, finished=[simulation])
    assert told.finished == news == []
    assert intake.settlement.validation.freeze().complete == ((0,) if simulation == 0 else ())


def test_an_end_that_a_rank_heard_of_is_not_told_again_after_a_restart() -> None:
    intake = make(num=2, validation=ValidationStore(1))
    intake.begin_attempt(0, 0)
    intake.end_simulation(0, "finished")
    _, told, news = restarted(intake, finished=[0])
    assert told.finished == news == []


def test_an_end_that_only_a_later_part_of_the_checkpoint_knows_of_comes_again_or_not_at_all() -> None:
    """Another rank had not received all when its part was saved: the simulation goes on."""
    intake = make(num=2, validation=ValidationStore(1))
    intake.begin_attempt(0, 0)
    intake.end_simulation(0, "finished")
    given_up, told, news = restarted(intake, finished=[])
    given_up.end_simulation(0, "given_up")
    assert told.finished == news == []
    assert given_up.settlement.validation.freeze().complete == ()
    again, told, _ = restarted(given_up, finished=[])
    again.end_simulation(0, "finished")
    assert told.finished == [0]
    assert again.settlement.validation.freeze().complete == (0,)


def test_the_types_of_fields_are_those_of_the_first_simulation_for_ever() -> None:
    untyped = FieldSpec(name="u", shape=(4,))
    intake = make(fields=[untyped])
    intake.begin_attempt(0, 0)
    opened(intake, opening(block()))
    other = make(fields=[untyped], incarnation=1)
    assert not other.state.dtypes_known
    other.load_state_dict(from_bytes(to_bytes(intake.state_dict())))
    assert other.state.dtypes == intake.state.dtypes
    assert other.state.dtypes_known


def test_what_was_refused_is_counted_on() -> None:
    intake = make(fields=[U])
    intake.state.refuse(Reason.CHECKSUM, "")
    other = make(fields=[U])
    other.load_state_dict(from_bytes(to_bytes(intake.state_dict())))
    other.state.refuse(Reason.CHECKSUM, "")
    assert other.state.refused == {"checksum": 2}


def test_pressure_ends_with_a_checkpoint_and_begins_anew_with_what_comes_after_it() -> None:
    intake = make(num=20, credit=8, max_unsaved=3)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    for first in (0, 4):
        for index in range(first, first + 3):
            send(intake, client, data(client, index))
            assert not intake.settlement.has_pressure
        send(intake, client, data(client, first + 3))
        assert intake.settlement.has_pressure
        intake.checkpoint_taken()
        assert not intake.settlement.has_pressure
