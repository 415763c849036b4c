"""A share is whole once every step of it has come: neither their number nor the last one tells that."""

from stream_server.client_api.messages import End
from stream_server.server.tracker import Tracker
from tests.server.trackers import block, data, make, opened, opening, send


def is_whole(tracker: Tracker) -> bool:
    return any(share.complete for share in tracker.settlement.changes())


def test_a_step_that_comes_twice_does_not_stand_for_another() -> None:
    tracker = make(num=3)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    for step in (0, 0, 1):
        send(tracker, client, data(client, step))
        assert not is_whole(tracker)
    send(tracker, client, data(client, 2))
    assert is_whole(tracker)


def test_the_last_step_does_not_stand_for_those_before_it() -> None:
    tracker = make(num=3)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    for step in (2, 0):
        send(tracker, client, data(client, step))
        assert not is_whole(tracker)
    send(tracker, client, data(client, 1))
    assert is_whole(tracker)


def test_steps_of_an_unknown_number_are_counted_each_once() -> None:
    tracker = make(num=None)
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    send(tracker, client, data(client, 4))
    send(tracker, client, data(client, 4))
    assert tracker.finished_sending(client, End(simulation=0, attempt=0, epoch=0, share=2, total=2)) is None
    assert not is_whole(tracker)
