"""The attempts of a run, from a journal as launchers write it and folders as they leave them."""

import os
from pathlib import Path

import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.timeline import AttemptTimeline, newest_failures
from stream_server.launcher.journal import records
from stream_server.messages.launcher_link import Attached, Failed
from tests.dashboard.made_runs import STARTED, add_to_journal

AT_S = 1_700_000_000


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    add_to_journal(tmp_path, [STARTED])
    return RunFolder(tmp_path)


def begin(run: RunFolder, simulation: int, attempt: int = 0) -> Path:
    """An attempt begins; its connection file is written 3 s after its output."""
    folder = run.path / "simulations" / str(simulation) / f"attempt-{attempt}"
    folder.mkdir(parents=True)
    for seconds, name in ((0, "connection.json"), (3, "output.log")):
        (folder / name).touch()
        os.utime(folder / name, (AT_S + seconds, AT_S + seconds))
    starting = records.AttemptStarting(simulation=simulation, attempt=attempt, folder=str(folder), public_key=None)
    add_to_journal(run.path, [starting])
    return folder


def test_an_attempt_runs_from_its_first_file_to_its_last_once_the_journal_says_that_it_ended(run: RunFolder) -> None:
    timeline = AttemptTimeline(run)
    assert timeline.update(is_live=True) == []
    begin(run, 0)
    begin(run, 1)
    (first, second) = timeline.update(is_live=True)
    assert (first.state, first.started_s, first.ended_s) == ("running", AT_S, None)
    assert second.simulation == 1
    add_to_journal(run.path, [Failed(simulation=0, attempt=0, reason="exit code 1")])
    begin(run, 0, attempt=1)
    (first, _, third) = timeline.update(is_live=True)
    assert (first.state, first.ended_s, first.reason) == ("failed", AT_S + 3, "exit code 1")
    assert (third.simulation, third.attempt, third.state) == (0, 1, "running")


def test_how_an_attempt_ended_is_told_apart(run: RunFolder) -> None:
    for simulation in range(4):
        begin(run, simulation)
    cancelled = records.AttemptCancelled(simulation=1, attempt=0, reason="not wanted any more", excuse="")
    ended = [records.AttemptEnded(simulation=it, attempt=0, reason="ended with exit code 0") for it in (0, 1)]
    add_to_journal(run.path, [cancelled, *ended, records.LauncherLeft(exit_code=75)])
    found = AttemptTimeline(run).update(is_live=True)
    assert [it.state for it in found] == ["ended", "cancelled", "interrupted", "interrupted"]
    assert found[1].reason == "not wanted any more"


def test_in_a_run_that_was_killed_nothing_runs_and_a_client_that_attached_has_no_times(run: RunFolder) -> None:
    begin(run, 0)
    add_to_journal(run.path, [Attached(token=1, simulation=1, attempt=0, client="elsewhere")])
    timeline = AttemptTimeline(run)
    found = timeline.update(is_live=False)
    assert [it.state for it in found] == ["interrupted"] * 2
    assert (found[0].ended_s, found[1].started_s) == (AT_S + 3, None)
    # The next launcher takes over what still runs.
    assert [it.state for it in timeline.update(is_live=True)] == ["running"] * 2


def test_a_journal_that_begins_anew_is_another_history(run: RunFolder) -> None:
    timeline = AttemptTimeline(run)
    begin(run, 0)
    timeline.update(is_live=True)
    (run.path / "journal.jsonl").unlink()
    add_to_journal(run.path, [STARTED])
    assert timeline.update(is_live=True) == []


def test_a_job_that_has_left_its_exit_code_does_not_run_whatever_the_journal_lacks(run: RunFolder) -> None:
    timeline = AttemptTimeline(run)
    (begin(run, 0) / "job.exit").write_text("1\n")
    assert [it.state for it in timeline.update(is_live=True)] == ["ended"]
    add_to_journal(run.path, [Failed(simulation=0, attempt=0, reason="exit code 1")])
    (failed,) = timeline.update(is_live=True)
    assert (failed.state, failed.reason) == ("failed", "exit code 1")


def test_a_failed_attempt_is_told_although_another_one_finished(run: RunFolder) -> None:
    begin(run, 0, 0)
    begin(run, 1, 0)
    add_to_journal(run.path, [Failed(simulation=0, attempt=0, reason="was killed by SIGKILL")])
    begin(run, 0, 1)
    add_to_journal(run.path, [records.AttemptEnded(simulation=0, attempt=1, reason="ended with exit code 0")])
    assert newest_failures(run) == {0: "attempt 0 was killed by SIGKILL"}


def test_a_damaged_journal_tells_of_no_failures(run: RunFolder) -> None:
    (run.path / "journal.jsonl").write_bytes(b"damaged\n")
    assert newest_failures(run) == {}


def test_an_attempt_of_a_worker_runs_from_when_it_came_to_it_until_it_moved_on(run: RunFolder) -> None:
    folders = [begin(run, simulation) for simulation in range(3)]
    for folder in folders[1:]:
        (folder / "output.log").unlink()
        (folder / "output.log").symlink_to(folders[0] / "output.log")
    for folder, name, seconds in ((folders[0], "worker.end", 10), (folders[1], "worker.start", 10)):
        (folder / name).touch()
        os.utime(folder / name, (AT_S + seconds, AT_S + seconds))
    first, second, third = AttemptTimeline(run).update(is_live=True)
    assert (first.state, first.started_s, first.ended_s) == ("ended", AT_S, AT_S + 10)
    assert (second.state, second.started_s, second.ended_s) == ("running", AT_S + 10, None)
    assert third.started_s is None
