"""The watchdog: the times after which ranks that do not meet are noted, and leave."""

from stream_server.server.study.watchdog import Stall, Verdict

NOTHING, RESUMED, NOTE, LEAVE = Verdict.NOTHING, Verdict.RESUMED, Verdict.NOTE, Verdict.LEAVE


def test_half_the_time_is_noted_once_and_all_of_it_is_the_end() -> None:
    stall = Stall(8.0)
    assert [stall.look("first", 2.0) for _ in range(5)] == [NOTHING, NOTHING, NOTE, NOTHING, LEAVE]


def test_a_meeting_begins_the_count_anew_and_takes_the_note_back() -> None:
    stall = Stall(4.0)
    marks = ["a", "a", "b", "b", "b", "c", "c", "c", "c"]
    assert [stall.look(mark, 1.5) for mark in marks] == [
        *(NOTHING, NOTHING, NOTHING, NOTHING, NOTE),
        *(RESUMED, NOTHING, NOTE, LEAVE),
    ]
