"""What an older attempt of a simulation can still do: nothing."""

from stream_server.client_api.messages import Refusal
from tests.server.trackers import block, data, make, opened, opening, send


def test_a_late_notice_of_an_older_attempt_changes_nothing() -> None:
    tracker = make()
    tracker.begin(0, 1)
    client = opened(tracker, opening(block(), attempt=1))
    tracker.begin(0, 0)
    assert send(tracker, client, data(client, 0)) == 1
    track = tracker.track(0)
    assert track is not None
    assert track.attempt == 1


def test_an_older_attempt_has_no_room_for_a_streak_once_a_new_one_has_begun() -> None:
    tracker = make()
    tracker.begin(0, 0)
    client = opened(tracker, opening(block()))
    assert tracker.assembly.room_for_streak(client, 0) == tracker.credit
    tracker.begin(0, 1)
    assert tracker.assembly.room_for_streak(client, 0) == 0
    assert isinstance(send(tracker, client, data(client, 0)), Refusal)
