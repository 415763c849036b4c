"""When clients hear that their messages are received."""

from dataclasses import dataclass
from typing import Any

from stream_server.messages.client import Ack, End, TimeSteps
from stream_server.server.intake import mailbox
from stream_server.server.reception.dispatcher import Acknowledgements
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.reception import INCARNATION, RawClient, StudyShape, reception
from tests.support.timing import until

CREDIT = 7


@dataclass
class FakeConnection:
    """What acknowledgements see of a connection; a message has one step."""

    peer: bytes = b"client"
    received: int = 0
    acknowledged: int = 0
    num_owed: int = 0
    ended: bool = False

    def receive(self, num: int) -> "FakeConnection":
        self.received += num
        self.num_owed += num
        return self

    def ack(self) -> Ack:
        return Ack(received=self.received, durable=0, ended=self.ended)


def acknowledgements(connection: FakeConnection) -> tuple[Any, list[int]]:
    """Acknowledgements for this connection, and the marks that it was told."""
    marks: list[int] = []

    def reply(peer: bytes, message: Any) -> None:
        marks.append(message.received)

    connections: Any = {connection.peer: connection}
    return Acknowledgements(connections, reply, credit=CREDIT), marks


def test_what_is_received_is_acknowledged_when_half_of_the_credit_is_used() -> None:
    connection = FakeConnection()
    they, marks = acknowledgements(connection)
    for _ in range(10):
        they.acknowledge_received([connection.receive(1)])
    assert marks == [4, 8]


def test_a_client_that_has_ended_hears_at_once_of_everything() -> None:
    connection = FakeConnection()
    they, marks = acknowledgements(connection)
    connection.receive(1).ended = True
    they.acknowledge_received([connection])
    assert marks == [1]


def test_the_little_is_acknowledged_once_a_little_later() -> None:
    connection = FakeConnection()
    they, marks = acknowledgements(connection)
    they.acknowledge_received([connection.receive(1)])
    they.acknowledge_received([connection.receive(1)])
    assert marks == []
    for _ in range(2):
        they.acknowledge_owed()
    assert marks == [2]
    they.acknowledge_received([connection.receive(3)])
    they.acknowledge_received([connection.receive(1)])
    assert marks == [2, 6]
    they.acknowledge_owed()
    assert marks == [2, 6]


def test_a_client_hears_of_one_step_without_having_asked() -> None:
    with reception(StudyShape(credit=8, time_steps=TimeSteps(num=8))) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            client.say(data(0, 0), [value(0, 0).tobytes()])
            until(lambda: isinstance(answer := client.hear(), Ack) and answer.received == 1)


def test_a_client_that_ends_after_all_its_steps_are_in_the_stream_hears_so_without_having_asked() -> None:
    with reception(StudyShape(credit=2, time_steps=TimeSteps(num=1))) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            client.say(data(0, 0), [value(0, 0).tobytes()])
            # So that no answer to the step is still to come.
            until(lambda: isinstance(answer := client.hear(), Ack) and answer.received == 1)
            study.first.wait_for(mailbox.SimulationFinished)
            client.say(End(simulation=0, attempt=0, incarnation=INCARNATION, share=1, total=1))
            until(lambda: isinstance(answer := client.hear(), Ack) and answer.ended)
