"""A share is whole once every step of it has come: neither their number nor the last one tells that."""

from stream_server.messages.client import End
from tests.fakes.intakes import ClientIntake, block, data, make, opened, opening, send


def is_whole(intake: ClientIntake) -> bool:
    return any(share.complete for share in intake.changes())


def test_a_step_that_comes_twice_does_not_stand_for_another() -> None:
    intake = make(num=3)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    for step in (0, 0, 1):
        send(intake, client, data(client, step))
        assert not is_whole(intake)
    send(intake, client, data(client, 2))
    assert is_whole(intake)


def test_the_last_step_does_not_stand_for_those_before_it() -> None:
    intake = make(num=3)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    for step in (2, 0):
        send(intake, client, data(client, step))
        assert not is_whole(intake)
    send(intake, client, data(client, 1))
    assert is_whole(intake)


def test_steps_of_an_unknown_number_are_counted_each_once() -> None:
    intake = make(num=None)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 4))
    send(intake, client, data(client, 4))
    assert intake.assembly.finish(client, End(simulation=0, attempt=0, incarnation=0, share=2, total=2)) is None
    assert not is_whole(intake)
