"""Reopening of lost connections between a client rank and a server rank: docs/reference/protocol.md."""

from stream_server.messages.client import Ack, Block, End, FieldSpec, Message, Opened, Ping, Reason, Refusal, Stop
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.reception import INCARNATION, RawClient, Reception, StudyShape, reception

SHAPE = StudyShape(credit=6)
END = End(simulation=0, attempt=0, incarnation=INCARNATION, share=6, total=6)


def connection(study: Reception) -> RawClient:
    return RawClient(study.endpoints[0].data[0])


def open_at_last(client: RawClient, message: Message) -> Opened:
    """The answer to an `Open` that may have to wait."""
    while isinstance(answer := client.ask(message), Refusal) and answer.reason is Reason.BUSY:
        pass
    assert isinstance(answer, Opened), answer
    return answer


def send(client: RawClient, *steps: int, first: int = 0) -> None:
    for sequence, step in enumerate(steps, start=first):
        client.say(data(sequence, step), [value(0, step).tobytes()])


def acknowledged(client: RawClient, num: int) -> None:
    """Wait until so many messages are received."""
    while not isinstance(answer := client.ask(Ping()), Ack) or answer.received < num:
        assert not isinstance(answer, Refusal), answer


def refusal(client: RawClient) -> Reason:
    """Why the server refuses something, whatever else it says before."""
    while not isinstance(answer := client.hear(), Refusal):
        pass
    return answer.reason


def test_who_opens_again_hears_what_is_known_and_the_old_connection_is_none_any_more() -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with connection(study) as lost, connection(study) as next_one:
            open_at_last(lost, opening())
            send(lost, 0, 2)
            acknowledged(lost, 2)
            assert open_at_last(next_one, opening()).known == "05"
            lost.say(data(2, 3), [value(0, 3).tobytes()])
            assert refusal(lost) is Reason.NOT_OPEN
            send(next_one, 1, 3, 4, 5)
            acknowledged(next_one, 4)
        study.first.drain()
        assert sorted(study.first.drawn) == [(0, step) for step in range(6)]
        assert study.first.receiver.account().duplicates == 0


def test_credit_begins_anew_once_all_that_was_sent_is_in_the_stream() -> None:
    with reception(StudyShape(credit=4, capacity=1)) as study:
        welcome(study)
        with connection(study) as lost, connection(study) as next_one:
            open_at_last(lost, opening())
            send(lost, 0)
            acknowledged(lost, 1)
            send(lost, 1, 2, 3, 4, first=1)
            lost.ask(Ping())
            # One is in the buffer and four wait for room in it: four more would be too many.
            next_one.say(opening())
            assert refusal(next_one) is Reason.BUSY
            for _ in range(4):
                study.first.draw()
            assert open_at_last(next_one, opening()).known == "1f"
            send(next_one, 5)
            study.first.draw()
            acknowledged(next_one, 1)
        study.first.drain()
        assert sorted(study.first.drawn) == [(0, step) for step in range(6)]


def test_what_a_client_rank_has_sent_of_unfinished_steps_comes_again() -> None:
    shape = StudyShape(fields=(FieldSpec(name="u", shape=(2, 4)),), credit=4)

    def half(rank: int) -> Message:
        block = Block(field="u", dtype="<f8", shape=(2, 4), offset=(rank, 0), count=(1, 4))
        return opening(rank=rank, num_ranks=2, blocks=(block,))

    with reception(shape) as study:
        welcome(study)
        with connection(study) as lost, connection(study) as next_one, connection(study) as other:
            open_at_last(lost, half(0))
            open_at_last(other, half(1))
            send(lost, 0, 1, 2, 3)
            lost.ask(Ping())
            assert open_at_last(next_one, half(0)).known == ""
            send(next_one, 0, 1, 2, 3)
            # Nothing is received before the other client rank's half is there.
            assert next_one.ask(Ping()) == Ack(received=0, durable=0)
            send(other, 0, 1, 2, 3)
            acknowledged(next_one, 4)
            acknowledged(other, 4)
            for client in (next_one, other):
                send(client, 4, 5, first=4)
            acknowledged(next_one, 6)
        study.first.drain()
        assert sorted(study.first.drawn) == [(0, step) for step in range(6)]
        assert study.first.receiver.account().duplicates == 0


def test_who_does_not_hear_that_all_is_settled_is_told_so_later() -> None:
    with reception(SHAPE) as study:
        welcome(study)
        with connection(study) as lost, connection(study) as next_one:
            open_at_last(lost, opening())
            send(lost, *range(6))
            acknowledged(lost, 6)
            lost.say(END)
            while study.roster.table.counts()["finished"] == 0:
                lost.ask(Ping())
            answer = next_one.ask(opening())
            assert answer == Stop(text="simulation 0 is finished")
            next_one.say(opening(attempt=1))
            assert refusal(next_one) is Reason.STALE_ATTEMPT


def test_a_lost_connection_that_waited_for_room_is_not_let_in_behind_the_next_one() -> None:
    shape = StudyShape(credit=6, at_once=1, num_simulations=2)
    with reception(shape) as study:
        welcome(study, 0)
        welcome(study, 1)
        with connection(study) as first, connection(study) as lost, connection(study) as next_one:
            open_at_last(first, opening())
            for client in (lost, next_one):
                client.say(opening(simulation=1))
                assert refusal(client) is Reason.BUSY
            send(first, *range(6))
            acknowledged(first, 6)
            assert isinstance(next_one.hear(), Opened)
            lost.say(Ping())
            assert refusal(lost) is Reason.NOT_OPEN
