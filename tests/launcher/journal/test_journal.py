"""The journal that one launcher writes and the next one reads, whatever happened to the file."""

import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import ConfigError
from stream_server.launcher.journal import journal as journals
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import (
    AttemptCancelled,
    AttemptEnded,
    AttemptStarted,
    AttemptStarting,
    DamagedJournal,
    FirstStep,
    JournalRecord,
    LauncherLeft,
    LauncherStarted,
    PlanTaken,
    ServerEnded,
    ServerStarted,
    ServerStarting,
)
from stream_server.machine import processes
from stream_server.messages.launcher_link import Attached, Committed, Failed, FinishSimulations, GaveUp
from tests.support.lesser_disks import without_locks

BEGIN = LauncherStarted(pid=1, boot="b", link="", supervises=True, resumed=False)
RESUME = LauncherStarted(pid=2, boot="b", link="", supervises=True, resumed=True)
SERVER = ServerStarting(number=3, ranks=2, folder="/tmp/x/3", alive="ipc:///tmp/x/alive-3", reports_before="- -")

RECORDS: list[JournalRecord] = [
    BEGIN,
    PlanTaken(incarnation=2),
    SERVER,
    ServerStarted(number=3, pid=10, started=11),
    Committed(checkpoint=4, batches=1),
    ServerEnded(number=3, exit_code=7, num_in_a_row=2, failed_batch=None),
    AttemptStarting(simulation=0, attempt=1, folder="/runs/é", public_key=None),
    AttemptStarting(simulation=2, attempt=0, folder="/runs/2", public_key="k", job="/runs/0", ranks=4),
    AttemptStarted(simulation=0, attempt=1, handle="20 11 boot"),
    Attached(token=1, simulation=1, attempt=0),
    AttemptCancelled(simulation=0, attempt=1, reason="no new time step for 60 s", excuse=""),
    AttemptEnded(simulation=0, attempt=1, reason="ended with exit code 0"),
    Failed(simulation=0, attempt=1, reason="crashed", excuse=""),
    GaveUp(simulation=0, attempts=1, redraw=False, reason="crashed"),
    FirstStep(),
    FinishSimulations(reason="enough"),
    LauncherLeft(exit_code=0),
]


def journal_of(*written: JournalRecord) -> bytes:
    return b"".join(records.encode(record) for record in written)


def test_every_kind_of_record_comes_back_from_its_line() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(JournalRecord))
    assert list(records.decode(journal_of(*RECORDS))) == RECORDS


@given(st.integers(0, len(journal_of(*RECORDS))))
def test_a_journal_that_is_torn_anywhere_has_all_whole_records(num_bytes: int) -> None:
    journal = journal_of(*RECORDS)[:num_bytes]
    found = list(records.decode(journal))
    assert found == RECORDS[: journal.count(b"\n")]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"message": "Nonsense"}',
        b'{"message": "FirstStep", "more": 1}',
        b'{"message": "PlanTaken"}',
        b'{"message": "PlanTaken", "incarnation": "1"}',
        b'{"message": "PlanTaken", "incarnation": true}',
        b'{"message": ["FirstStep"]}',
    ],
)
def test_junk_gives_one_error_that_names_the_line(line: bytes) -> None:
    with pytest.raises(DamagedJournal, match="line 2 is no record"):
        list(records.decode(journal_of(BEGIN) + line + b"\n"))


def test_a_bit_that_has_changed_in_any_byte_is_noticed() -> None:
    journal = journal_of(BEGIN, PlanTaken(incarnation=2), AttemptEnded(simulation=0, attempt=1, reason="exit code 0"))
    for place, byte in enumerate(journal):
        if byte != ord("\n"):
            changed = journal[:place] + bytes([byte ^ 1]) + journal[place + 1 :]
            line = journal.count(b"\n", 0, place) + 1
            with pytest.raises(DamagedJournal, match=f"^line {line} is no record"):
                list(records.decode(changed))


@given(st.binary(max_size=60))
def test_any_bytes_give_records_or_one_typed_error(content: bytes) -> None:
    try:
        assert list(records.decode(content)) == []
    except DamagedJournal:
        assert b"\n" in content


def test_what_was_written_is_there_for_the_next_launcher(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        for record in RECORDS:
            journal.write(record)
    with Journal(tmp_path / "run") as journal:
        assert journal.history == History.of(RECORDS)


def test_a_torn_record_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(journal_of(BEGIN) + b'{"message": "Plan')
    with Journal(tmp_path) as journal:
        journal.write(PlanTaken(incarnation=1))
    with Journal(tmp_path) as journal:
        assert journal.history.incarnation == 1


def test_a_damaged_journal_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b"junk\n")
    with pytest.raises(ConfigError, match=r"line 1 is no record .* Move it away"), Journal(tmp_path):
        pass


def test_a_journal_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"journal\.jsonl cannot be opened: "), Journal(tmp_path / "run"):
        pass


def test_only_one_launcher_at_a_time_has_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(ConfigError, match="another launcher runs the study"), Journal(tmp_path):
        pass
    with Journal(tmp_path):
        pass


def test_the_lock_is_not_left_to_children(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        (descriptor,) = (
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}") and os.path.samefile(f"/proc/self/fd/{name}", journal.file)
        )
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_full_disk_tears_no_record_and_what_was_only_noted_follows_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        journal.write(BEGIN)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python ignores SIGXFSZ: a write beyond the limit fails, one across it is cut short.
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.file.stat().st_size + 5, before[1]))
        try:
            with pytest.raises(OSError, match=r"could be written|too large"):
                journal.write(PlanTaken(incarnation=1))
            journal.note(PlanTaken(incarnation=2))
            journal.note(FirstStep())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caplog.text.count("is behind from now on") == 1
        assert [json.loads(line)["message"] for line in journal.file.read_text().splitlines()] == ["LauncherStarted"]
        journal.note(PlanTaken(incarnation=3))
        kinds = list(records.decode(journal.file.read_bytes()))
        assert kinds == [BEGIN, PlanTaken(incarnation=2), FirstStep(), PlanTaken(incarnation=3)]


def test_without_locks_the_launcher_of_a_rank_0_that_was_killed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    monkeypatch.setattr(journals, "LEAVE_S", 0.3)
    link = "ipc:///tmp/x/link"
    with subprocess.Popen([sys.executable, "-c", "input()", link], stdin=subprocess.PIPE) as launcher:
        boot = processes.this_boot()
        began = LauncherStarted(pid=launcher.pid, boot=boot, link=link, supervises=False, resumed=False)
        with Journal(tmp_path) as journal:
            journal.write(began)
        with pytest.raises(ConfigError, match="another launcher runs the study"), Journal(tmp_path):
            pass
        with pytest.raises(ConfigError, match="another launcher runs the study"):
            Journal.check_free(tmp_path)
        launcher.kill()
        launcher.wait()
        Journal.check_free(tmp_path)
        with Journal(tmp_path) as journal:
            assert journal.history.launcher == began


def attempt(simulation: int, number: int) -> AttemptStarting:
    return AttemptStarting(simulation=simulation, attempt=number, folder=f"/{simulation}/{number}", public_key="k")


def test_an_attempt_without_an_end_is_open() -> None:
    started = AttemptStarted(simulation=0, attempt=0, handle="5 11 boot")
    past = History.of([BEGIN, attempt(0, 0), started, attempt(1, 3)])
    assert [(it.starting, it.handle) for it in past.attempts.values()] == [
        (attempt(0, 0), "5 11 boot"),
        (attempt(1, 3), None),
    ]
    assert all(past.simulations[it].attempt is past.attempts[it].attempt for it in (0, 1))
    assert past.highest == {0: 0, 1: 3}


def test_an_attempt_of_a_client_that_attached_by_itself_is_open_and_of_no_job() -> None:
    past = History.of([BEGIN, Attached(token=1, simulation=4, attempt=2, client="mine")])
    [begun] = past.attempts.values()
    assert (begun.key, begun.attempt.client, begun.starting, begun.state) == ((4, 2), "mine", None, "running")
    assert past.jobs == {}


def test_an_answer_that_is_repeated_begins_no_attempt_anew() -> None:
    first, again = (Attached(token=it, simulation=4, attempt=2, client=f"client {it}") for it in range(2))
    attempt = History.of([BEGIN, PlanTaken(incarnation=1), first, PlanTaken(incarnation=2), again]).attempts[4].attempt
    assert attempt.client == "client 0"
    assert "was restarted" in attempt.excuse


def test_attempts_of_one_job_are_known_as_such_also_when_some_have_ended() -> None:
    group = [
        AttemptStarting(simulation=it, attempt=0, folder=f"/{it}/0", public_key="k", job="/0/0") for it in range(3)
    ]
    ended = Failed(simulation=0, attempt=0, reason="", excuse="")
    past = History.of([BEGIN, *group, attempt(3, 0), ended])
    assert [it.key for it in past.jobs["/0/0"]] == [(0, 0), (1, 0), (2, 0)]
    assert [it.key for it in past.in_job("/0/0")] == [(1, 0), (2, 0)]
    assert [it.key for it in past.in_job("/3/0")] == [(3, 0)]
    assert [it.attempt.members for it in past.attempts.values()] == [(1, 2), (1, 2), (3,)]


def test_a_journal_of_another_format_is_refused_and_says_so(tmp_path: Path) -> None:
    line = b'{"message": "LauncherStarted", "pid": 1, "boot": "b", "link": "", "supervises": true, "resumed": false'
    (tmp_path / "journal.jsonl").write_bytes(records.with_checksum(line) + b"\n")
    with (
        pytest.raises(ConfigError, match="another version: it is of format 1, this version knows 6 only"),
        Journal(tmp_path),
    ):
        pass


def test_what_is_deferred_is_one_line_with_what_follows_or_is_flushed(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.defer(BEGIN)
        journal.flush()
        journal.flush()
        journal.defer(PlanTaken(incarnation=1), FirstStep())
        assert journal.file.read_bytes() == records.encode(BEGIN)
        journal.write(PlanTaken(incarnation=2))
        together = records.encode(PlanTaken(incarnation=1), FirstStep(), PlanTaken(incarnation=2))
        assert journal.file.read_bytes() == records.encode(BEGIN) + together


def test_nothing_is_written_where_there_is_nothing_to_note(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.note()
        assert journal.file.read_bytes() == b""


@pytest.mark.parametrize("several", [b"[]", b"7", b"[7]", b'[{"message":"Junk"}]', b'[],"more":1'])
def test_a_line_of_other_things_than_records_is_damage(tmp_path: Path, several: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(
        records.with_checksum(b'{"message":"Together","records":' + several) + b"\n"
    )
    with pytest.raises(ConfigError, match="line 1 is no record of a launcher"), Journal(tmp_path):
        pass


def test_how_many_ranks_a_job_has_is_a_matter_of_its_start() -> None:
    starting = AttemptStarting(simulation=0, attempt=0, folder="/0/0", public_key=None, job="/0/0", ranks=4)
    assert History.of([BEGIN, starting]).attempts[0].starting == starting


def test_a_cancel_outlives_the_launcher_that_sent_it_but_not_its_attempt() -> None:
    cancelled = AttemptCancelled(simulation=0, attempt=0, reason="late", excuse="not its fault")
    past = History.of([BEGIN, attempt(0, 0), attempt(1, 0), cancelled])
    found = [it.attempt for it in past.attempts.values()]
    assert [(it.is_cancelled, it.reason, it.excuse) for it in found] == [
        (True, "late", "not its fault"),
        (False, "", ""),
    ]
    assert not History.of([BEGIN, attempt(0, 0), cancelled, attempt(0, 1)]).attempts[0].attempt.is_cancelled


def test_failures_count_only_when_they_count() -> None:
    ends = [Failed(simulation=0, attempt=i, reason="", excuse="restarted" if i == 1 else "") for i in range(3)]
    past = History.of([BEGIN, *ends])
    assert past.simulations[0].failures == 2
    assert past.attempts == {}


def test_a_simulation_whose_last_job_is_told_to_have_ended_stays_given_up() -> None:
    late = "sent no new time step for 60 s"
    ends: list[JournalRecord] = [
        AttemptCancelled(simulation=0, attempt=0, reason=late, excuse=""),
        Failed(simulation=0, attempt=0, reason=late, excuse=""),
        GaveUp(simulation=0, attempts=1, redraw=False, reason=late),
        AttemptEnded(simulation=0, attempt=0, reason="was killed by SIGTERM"),
    ]
    past = History.of([BEGIN, attempt(0, 0), *ends])
    assert past.is_given_up(0)
    assert past.all_attempts[0, 0].attempt.reason == late
    assert not History.of([BEGIN, attempt(0, 0), *ends, attempt(0, 1)]).is_given_up(0)


def test_a_new_run_knows_only_what_numbers_were_used() -> None:
    before = [BEGIN, SERVER, attempt(0, 4), Failed(simulation=0, attempt=4, reason="", excuse=""), FirstStep()]
    new = LauncherStarted(pid=3, boot="b", link="l", supervises=False, resumed=False)
    past = History.of([*before, new])
    assert past.all_attempts.keys() == {(0, 4)}
    past.all_attempts.clear()
    assert past == History(launcher=new, ended_in_order=False, highest={0: 4}, num_starts=3)


def test_how_each_attempt_ended_is_known_over_all_runs() -> None:
    cancelled = AttemptCancelled(simulation=2, attempt=0, reason="late", excuse="")
    failed = Failed(simulation=1, attempt=0, reason="crashed", excuse="")
    ended = [AttemptEnded(simulation=it, attempt=0, reason="ended with exit code 0") for it in (0, 2)]
    begun = [attempt(it, 0) for it in range(4)]
    new = LauncherStarted(pid=3, boot="b", link="l", supervises=False, resumed=False)
    past = History.of([BEGIN, *begun, cancelled, failed, *ended, new, attempt(3, 1)])
    assert {key: (it.state, it.attempt.reason) for key, it in past.all_attempts.items()} == {
        (0, 0): ("ended", "ended with exit code 0"),
        (1, 0): ("failed", "crashed"),
        (2, 0): ("cancelled", "late"),
        (3, 0): ("interrupted", ""),
        (3, 1): ("running", ""),
    }


def test_of_an_attempt_that_nobody_cancelled_the_last_word_counts() -> None:
    ended = AttemptEnded(simulation=0, attempt=0, reason="ended with exit code 0")
    failed = Failed(simulation=0, attempt=0, reason="ended with exit code 0, but had not finished")
    assert History.of([BEGIN, attempt(0, 0), ended, failed]).all_attempts[0, 0].attempt.reason == failed.reason


def test_of_a_job_that_was_cancelled_only_those_are_told_so_whose_end_that_decided() -> None:
    begun = [AttemptStarting(simulation=it, attempt=0, folder=f"/{it}/0", public_key="k", job="/0/0") for it in (0, 1)]
    ended = AttemptEnded(simulation=1, attempt=0, reason="ended with exit code 0")
    past = History.of([BEGIN, *begun, AttemptCancelled(simulation=0, attempt=0, reason="late", excuse=""), ended])
    assert [it.state for it in past.all_attempts.values()] == ["cancelled", "ended"]


def test_a_launcher_that_resumes_knows_everything() -> None:
    before = [BEGIN, SERVER, attempt(0, 4), FirstStep(), GaveUp(simulation=1, attempts=1, redraw=False, reason="r")]
    past = History.of([*before, RESUME])
    assert past.launcher == RESUME
    assert past.server is not None
    assert past.anything_came
    assert past.is_given_up(1)
    assert not past.is_given_up(0)
    assert set(past.attempts) == {0}


def test_restarts_in_a_row_are_those_since_the_last_checkpoint() -> None:
    ended = ServerEnded(number=3, exit_code=7, num_in_a_row=2, failed_batch=9)
    assert History.of([BEGIN, SERVER, ended]).num_in_a_row == 2
    past = History.of([BEGIN, SERVER, ended, SERVER, Committed(checkpoint=1, batches=1)])
    assert (past.num_in_a_row, past.failed_batch) == (0, 9)


def test_a_launcher_that_left_has_ended_in_order_and_one_that_did_not_has_not() -> None:
    assert History.of([]).ended_in_order
    assert not History.of([BEGIN]).ended_in_order
    assert History.of([BEGIN, LauncherLeft(exit_code=7)]).ended_in_order
