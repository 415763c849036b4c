"""Messages in a row, which the receiver takes with less ado than a single one: the outcome is the same."""

import numpy as np
import pytest

from stream_server.messages.client import Ack, Opened, Ping, Reason, Refusal, TimeSteps
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.reception import RawClient, Reception, StudyShape, reception

NUM = 40
SHAPE = StudyShape(credit=NUM, time_steps=TimeSteps(num=NUM))


def send_at_once(study: Reception, client: RawClient, payloads: list[bytes], num_steps: int = 1) -> None:
    """Send messages of so many steps each while the receiver is held back, so that it finds many of them."""
    with study.first.receiver.turn:
        for number, payload in enumerate(payloads):
            client.say(data(number, number * num_steps, num_steps=num_steps), [payload])


def hear_all(client: RawClient, num: int) -> list[Refusal]:
    """Wait until so many messages are acknowledged; returns what was refused on the way."""
    refusals = []
    while not isinstance(answer := client.ask(Ping()), Ack) or answer.received < num:
        if isinstance(answer, Refusal):
            refusals.append(answer)
    return refusals


@pytest.mark.parametrize("num_steps", [1, 4])
def test_messages_in_a_row_reach_the_stream_in_order(num_steps: int) -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            steps = [value(0, step).tobytes() for step in range(NUM)]
            payloads = [b"".join(steps[i : i + num_steps]) for i in range(0, NUM, num_steps)]
            send_at_once(study, client, payloads, num_steps)
            assert hear_all(client, len(payloads)) == []
        study.first.drain()
        assert study.first.drawn == [(0, step) for step in range(NUM)]
        for step in range(NUM):
            np.testing.assert_array_equal(study.first.rows[0, step]["u"], value(0, step))


def test_one_with_nan_is_rejected_alone() -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            payloads = [value(0, step).tobytes() for step in range(NUM)]
            payloads[17] = np.array([0, 1, np.nan, 3.0]).tobytes()
            send_at_once(study, client, payloads)
            assert hear_all(client, NUM) == []
        study.first.drain()
        assert study.first.drawn == [(0, step) for step in range(NUM) if step != 17]
        assert study.first.receiver.account().intake[0].rejected == {"nonfinite": 1}


@pytest.mark.parametrize("size", [31, 33])
def test_one_of_a_wrong_size_is_refused_alone(size: int) -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            payloads = [value(0, step).tobytes() for step in range(NUM)]
            payloads[17] = bytes(size)
            send_at_once(study, client, payloads)
            (refusal,) = hear_all(client, NUM)
            assert (refusal.reason, refusal.sequence) == (Reason.MALFORMED, 17)
            assert "32 were expected" in refusal.text
            client.say(data(NUM, 17), [value(0, 17).tobytes()])
            assert hear_all(client, NUM + 1) == []
        study.first.drain()
        assert sorted(study.first.drawn) == [(0, step) for step in range(NUM)]


def test_steps_that_come_again_over_a_second_connection_make_duplicates() -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as one, RawClient(study.endpoints[0].data[0]) as other:
            assert isinstance(one.ask(opening()), Opened)
            send_at_once(study, one, [value(0, step).tobytes() for step in range(NUM - 1)])
            assert hear_all(one, NUM - 1) == []
            assert isinstance(other.ask(opening()), Opened)
            send_at_once(study, other, [value(0, step).tobytes() for step in range(NUM)])
            assert hear_all(other, NUM) == []
        study.first.drain()
        assert sorted(study.first.drawn) == [(0, step) for step in range(NUM)]
        assert study.first.receiver.account().duplicates == NUM - 1


def test_messages_that_came_together_are_acknowledged_one_by_one_as_the_buffer_takes_them() -> None:
    with reception(StudyShape(credit=NUM, time_steps=TimeSteps(num=NUM), capacity=3)) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            send_at_once(study, client, [value(0, step).tobytes() for step in range(NUM)])
            assert hear_all(client, 3) == []
            study.first.draw(2)
            assert hear_all(client, 5) == []
            ack = client.ask(Ping())
            assert isinstance(ack, Ack)
            assert ack.received == 5


def test_one_with_nan_is_not_acknowledged_before_those_that_came_with_it_and_wait() -> None:
    with reception(StudyShape(credit=NUM, time_steps=TimeSteps(num=NUM), capacity=3)) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            payloads = [value(0, step).tobytes() for step in range(10)]
            payloads[4:] = [np.full(4, np.nan).tobytes()] * 6
            send_at_once(study, client, payloads)
            assert hear_all(client, 3) == []
            ack = client.ask(Ping())
            assert isinstance(ack, Ack)
            assert ack.received == 3
            study.first.draw(1)
            assert hear_all(client, 10) == []
