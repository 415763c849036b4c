"""What clients hear, and when they hear that their messages are received."""

from dataclasses import dataclass
from typing import Any

import pytest

from stream_server.messages import notices
from stream_server.messages.client import (
    Ack,
    Data,
    End,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
)
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake import mailbox
from stream_server.server.reception.dispatcher import (
    ANSWERS,
    ANSWERS_WHEN_LEAVING,
    KINDS,
    OTHERS,
    Acknowledgements,
    ConversationState,
    Response,
)
from tests.fakes import intakes
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support import intake_ranks
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


PEER = b"client"
SHAPE = intake_ranks.StudyShape(
    routing=Routing.STEPS, num_steps=4, credit=4, room=4, capacity=4, fields=(intake_ranks.U,)
)
ARRAY = intake_ranks.u_of((0, 0))


def rank_in(state: ConversationState) -> intake_ranks.ServerRank:
    """A server rank that has this conversation with a client rank."""
    rank = intake_ranks.ServerRank(SHAPE, set(), rank=0, num_ranks=1, incarnation=intakes.INCARNATION)
    rank.dispatcher.apply(notices.AttemptNotice(simulation=0, attempt=0, parameters={}))
    if state is ConversationState.WAITING:
        # Another simulation has all the credit.
        rank.dispatcher.apply(notices.AttemptNotice(simulation=1, attempt=0, parameters={}))
        rank.hear(b"other", intakes.opening(intakes.block(), simulation=1))
    if state is not ConversationState.NEW:
        rank.hear(PEER, intakes.opening(intakes.block()))
    if state is ConversationState.FINISHED:
        rank.dispatcher.apply(notices.Terminal(simulation=0, state=SimulationPhase.FINISHED))
    if state is ConversationState.STOPPED:
        rank.dispatcher.apply(notices.StopNotice(reason="enough"))
    rank.answers.clear()
    return rank


def heard(rank: intake_ranks.ServerRank, message: Message) -> Response | Reason:
    """The answer to a message, as the table names it."""
    rank.hear(PEER, message, [ARRAY] if isinstance(message, Data) else [])
    answers = rank.answers[PEER]
    if not answers:
        return Response.HEARD if isinstance(message, Data | End) and rank.dispatcher.is_receiving else Response.NONE
    answer = answers.popleft()
    assert not answers
    if isinstance(answer, Refusal):
        return answer.reason
    return Response.STOP if isinstance(answer, Stop) else Response.HEARD


MESSAGES: dict[type[Message], Message] = {
    type(message): message
    for message in (
        intakes.opening(intakes.block()),
        data(0, 0, incarnation=intakes.INCARNATION),
        End(simulation=0, attempt=0, incarnation=intakes.INCARNATION, share=4, total=4),
        Ping(),
        Hello(study="s", simulation=0, attempt=0, rank=0, num_ranks=1),
        Invalidate(study="s", simulation=0, attempt=0, reason=""),
        Invalidated(simulation=0),
    )
}


@pytest.mark.parametrize("state", ConversationState)
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("is_receiving", [True, False])
def test_the_answer_is_that_of_the_table(state: ConversationState, kind: type[Message], is_receiving: bool) -> None:
    rank = rank_in(state)
    rank.dispatcher.is_receiving = is_receiving
    column = KINDS.get(kind, OTHERS)
    expected = ANSWERS[state][column]
    if not is_receiving and state is not ConversationState.STOPPED:
        expected = ANSWERS_WHEN_LEAVING.get(column, expected)
    if state is ConversationState.WAITING and kind is Open and is_receiving:
        expected = Reason.BUSY
    assert rank.dispatcher.state(PEER) is state
    assert heard(rank, MESSAGES[kind]) is expected
