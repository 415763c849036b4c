"""The settlement of complete steps: the order in which they leave, the room they hold, the pressure they make."""

from itertools import count

import pytest

from stream_server.messages.client import Routing, TimeSteps
from stream_server.messages.routing import Dealing
from stream_server.server.intake.attempts import AttemptState, StepRun
from stream_server.server.intake.credit import CreditPool
from stream_server.server.intake.layout import BlockLayout
from stream_server.server.intake.settlement import Settlement
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from tests.fakes.intakes import Waiting

CREDIT = 4


class Desk:
    """A settlement, and the ledger and room that go with it."""

    def __init__(self, *, size: int = 8, max_unsaved: int = 100, num_held_out: int = 0) -> None:
        self.credit = CreditPool(size=size, credit=CREDIT)
        state = IntakeState(
            rank=0,
            dealing=Dealing(Routing.STEPS, 1),
            time_steps=TimeSteps(num=None),
            fields=(),
            study="s",
            incarnation=0,
            credit=CREDIT,
        )
        self.buffer = Waiting()
        self.settlement = Settlement(
            self.buffer,
            ValidationStore(num_held_out),
            self.credit,
            state,
            nonfinite="reject",
            max_unsaved=max_unsaved,
        )
        self.ledger = state.ledger
        self._slots = count()

    def attempt(self, simulation: int, *, num_ranks: int = 1) -> AttemptState:
        layout = BlockLayout(fields={}, num_ranks=num_ranks)
        return AttemptState(simulation=simulation, attempt=0, entry=self.ledger[simulation], layout=layout)

    def run(self, attempt: AttemptState, *indices: int) -> StepRun:
        slots = [next(self._slots) for _ in indices]
        return StepRun(attempt, attempt.reservation, range(indices[0], indices[-1] + 1), slots, (), [])

    def accept(self, attempt: AttemptState, *indices: int) -> None:
        self.settlement.accept(self.run(attempt, *indices))

    @property
    def num_free(self) -> int:
        """How many simulations could be let in now."""
        attempts = [self.attempt(-1 - i) for i in range(self.credit.size)]
        reserved = [attempt for attempt in attempts if self.credit.reserve(attempt)]
        for attempt in reserved:
            self.credit.release(attempt)
        return len(reserved)


def test_what_waited_in_an_earlier_incarnation_leaves_first_and_in_its_order() -> None:
    desk = Desk()
    desk.settlement.restore_waiting(desk.ledger, [3, 1, 3])
    attempt = desk.attempt(2)
    assert desk.credit.reserve(attempt)
    desk.accept(attempt, 0, 1)
    assert desk.settlement.num_waiting == 5
    desk.settlement.in_stream(3)
    assert desk.settlement.touched == {}
    assert (desk.settlement.num_waiting, attempt.num_waiting) == (2, 2)
    desk.settlement.in_stream(2)
    assert not desk.settlement.has_waiting


def test_what_waited_in_an_earlier_incarnation_holds_room_until_it_leaves() -> None:
    desk = Desk(size=2 * CREDIT)
    assert desk.num_free == 2
    desk.settlement.restore_waiting(desk.ledger, [0] * (CREDIT + 1))
    assert desk.num_free == 0
    desk.settlement.in_stream(1)
    assert desk.num_free == 1
    desk.settlement.in_stream(CREDIT)
    assert desk.num_free == 2


def test_more_may_have_waited_than_there_is_room_for_now() -> None:
    desk = Desk(size=CREDIT)
    desk.settlement.restore_waiting(desk.ledger, [0] * 10)
    for _ in range(10):
        assert desk.num_free == 0
        desk.settlement.in_stream(1)
    assert desk.num_free == 1


def test_what_waited_in_an_earlier_incarnation_is_neither_news_nor_progress() -> None:
    desk = Desk(max_unsaved=1)
    desk.settlement.restore_waiting(desk.ledger, [0] * 3)
    desk.settlement.in_stream(3)
    assert desk.settlement.changed == set()
    assert not desk.settlement.has_pressure


def test_what_is_withdrawn_does_not_wait_again() -> None:
    desk = Desk()
    desk.settlement.restore_waiting(desk.ledger, [1, 2, 1, 2, 2])
    desk.settlement.withdraw(2)
    assert desk.settlement.num_waiting == 2
    desk.settlement.in_stream(2)
    assert desk.num_free == 2


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_pressure_begins_when_a_client_rank_has_sent_more_than_it_may_keep_alone(num_ranks: int) -> None:
    desk = Desk(max_unsaved=2)
    attempt = desk.attempt(0, num_ranks=num_ranks)
    for index in range(2 * num_ranks):
        desk.accept(attempt, index)
        assert not desk.settlement.has_pressure
    desk.accept(attempt, 2 * num_ranks)
    assert desk.settlement.has_pressure


def test_many_simulations_that_send_little_make_no_pressure() -> None:
    desk = Desk(max_unsaved=2)
    for simulation in range(20):
        desk.accept(desk.attempt(simulation), 0, 1)
    assert not desk.settlement.has_pressure


def test_rejected_and_held_out_steps_make_pressure_too() -> None:
    for settle, simulation in ((Settlement.accept, 0), (Settlement.reject, 1)):
        desk = Desk(max_unsaved=1, num_held_out=1)
        settle(desk.settlement, desk.run(desk.attempt(simulation), 0, 1))
        assert desk.settlement.has_pressure
        assert not desk.settlement.has_waiting
