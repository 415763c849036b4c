"""The watchdog: the times after which ranks that do not meet are noted, and leave."""

import faulthandler
from pathlib import Path

import pytest

from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.study.failure import Failure
from stream_server.server.study.watchdog import Stall, Verdict, Watchdog

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


def test_a_rank_that_leaves_has_said_why_before_exit_json_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(Failure, "record", lambda failure, folder: said.append(capsys.readouterr().err))
    watchdog = Watchdog(CollectiveCalls(), rank=0, stall_s=0.2, output_dir=tmp_path, is_under_mpirun=False)
    watchdog.num_ranks, watchdog.abort = 2, lambda exit_code: said.append(f"aborted with {exit_code}")
    watchdog._look(0.1)
    watchdog._look(0.2)
    assert "rank 0: the ranks have not met for 0.2 s (server.stall_s): rank 0 is in " in said[0]
    assert said[1:] == ["aborted with 7"]
