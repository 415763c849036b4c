"""The watchdog: the times after which ranks that do not meet are noted, and leave."""

import faulthandler
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from stream_server.launcher.schedule.retry_policy import most_failed
from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.study.failure import Failure
from stream_server.server.study.watchdog import Stall, Verdict, Watchdog, _place
from stream_server.user_code import call_user

NOTHING, RESUMED, NOTE, TELL, LEAVE = Verdict.NOTHING, Verdict.RESUMED, Verdict.NOTE, Verdict.TELL, Verdict.LEAVE


def test_half_the_time_is_noted_and_told_once_and_all_of_it_is_the_end() -> None:
    stall = Stall(8.0)
    assert [stall.look("first", 1.0) for _ in range(9)] == [
        *(NOTHING, NOTHING, NOTHING, NOTHING, NOTE),
        *(TELL, NOTHING, NOTHING, LEAVE),
    ]


def test_a_meeting_begins_the_count_anew_and_takes_the_note_back() -> None:
    stall = Stall(4.0)
    marks = ["a", "a", "b", "b", "b", "c", "c", "c", "c"]
    assert [stall.look(mark, 1.5) for mark in marks] == [
        *(NOTHING, NOTHING, NOTHING, NOTHING, NOTE),
        *(RESUMED, NOTHING, NOTE, LEAVE),
    ]


def test_what_takes_longer_than_a_minute_is_told_after_that_and_then_more_seldom() -> None:
    stall, told = Stall(1800.0), []
    for meeting in range(8):
        stall.look(meeting, 1.0)
        for _ in range(1799):
            if stall.look(meeting, 1.0) is TELL:
                told.append(stall.waited_s)
    assert told == [68, 135, 270, 540, *[1013] * 4]


def test_rank_0_tells_which_ranks_do_not_wait_as_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs").mkdir()
    dogs = []
    for rank in range(3):
        collectives = CollectiveCalls()
        if rank != 2:
            collectives.begin("all_reduce")
        dogs.append(Watchdog(collectives, rank=rank, stall_s=1800.0, output_dir=tmp_path, is_under_mpirun=False))
        dogs[-1].num_ranks = 3
    for elapsed_s in (0.0, 60.0, 10.0):
        for watchdog in dogs:
            watchdog._look(elapsed_s)
    told = [it.message for it in caplog.records if it.levelname == "WARNING"]
    assert told[0].startswith(
        "rank 0 has met no other rank for 70 s: it waits for the others in all_reduce; rank 2 is in "
    )
    assert told[0].endswith("The job is ended after 1800 s (server.stall_s), unless they meet before")
    assert "rank 2" not in told[1]


def test_a_rank_is_in_what_our_code_has_called_or_else_in_our_code() -> None:
    def of_the_user() -> str:
        return _place(sys._getframe())

    assert f"{of_the_user.__qualname__} ({__file__}:" in call_user("it", of_the_user)
    assert _place(call_user("it", sys._getframe)).startswith("call_user (")
    assert _place(None) == "no code of Python"


def test_a_rank_that_leaves_has_said_why_before_exit_json_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    # A live display, or whoever takes the place of sys.stderr, need not be a file that faulthandler can write.
    stacks_go_to: list[object] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, file, **__: stacks_go_to.append(file))
    monkeypatch.setattr(Failure, "record", lambda failure, folder: said.append(capsys.readouterr().err))
    watchdog = Watchdog(CollectiveCalls(), rank=0, stall_s=0.2, output_dir=tmp_path, is_under_mpirun=False)
    watchdog.num_ranks, watchdog.abort = 2, lambda exit_code: said.append(f"aborted with {exit_code}")
    watchdog._look(0.1)
    watchdog._look(0.2)
    assert "rank 0: the ranks have not met for 0.2 s (server.stall_s): rank 0 is in " in said[0]
    assert said[1:] == ["aborted with 7"]
    assert stacks_go_to == [sys.__stderr__]


def test_a_thread_of_ours_that_ends_with_an_exception_ends_its_rank_and_one_of_others_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    codes: list[int] = []
    watchdog = Watchdog(CollectiveCalls(), rank=0, stall_s=1800.0, output_dir=tmp_path, is_under_mpirun=False)
    watchdog.abort = codes.append
    with watchdog:
        for target, name in ((lambda: 1 / 0, "a library's"), (partial(most_failed, "few", 1), "ours")):
            thread = Thread(target=target, name=name)
            thread.start()
            thread.join()
            assert codes == ([70] if name == "ours" else [])
    failure = Failure.read(tmp_path)
    assert failure is not None
    assert (failure.thread, failure.exit_code) == ("ours", 70)
    assert "TypeError" in failure.traceback
    assert "the thread a library's has ended" in caplog.text
