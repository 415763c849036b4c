"""The launcher's journal after a power failure, at the moments at which it once was wrong."""

from pathlib import Path

import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import JOURNAL_FILE, Journal
from stream_server.launcher.journal.records import JournalRecord, PlanTaken
from tests.faults.disk.model import Synced, Tree, Wrote
from tests.faults.disk.recording import recorded
from tests.faults.disk.scratch import put, taken
from tests.faults.disk.states import Moment
from tests.support.failing_disk import failing

RECORDS: tuple[JournalRecord, ...] = tuple(PlanTaken(incarnation=number) for number in range(3))
WHOLE = b"".join(map(records.encode, RECORDS))


def journal_of(tree: Tree) -> bytes:
    """The content of a journal on a disk."""
    run = tree["run"]
    assert isinstance(run, dict)
    content = run[JOURNAL_FILE]
    assert isinstance(content, bytes)
    return content


def test_a_new_journal_is_on_disk_with_its_name(tmp_path: Path) -> None:
    with recorded(tmp_path, {}) as history, Journal(tmp_path / "run") as journal:
        journal.write(*RECORDS)
    assert journal_of(Moment(history, len(history.steps)).synced().tree) == records.encode(*RECORDS)


def test_records_that_are_written_together_go_to_disk_at_once(tmp_path: Path) -> None:
    with recorded(tmp_path, {}) as history, Journal(tmp_path / "run") as journal:
        journal.write(*RECORDS)
        assert list(records.decode(journal.file.read_bytes())) == list(RECORDS)
    [place] = [place for place, step in enumerate(history.steps) if isinstance(step, Wrote)]
    assert isinstance(history.steps[place + 1], Synced)


@pytest.mark.parametrize("end", [1, 100, -1])
def test_of_records_that_were_written_together_there_are_all_or_none(tmp_path: Path, end: int) -> None:
    later = records.encode(*(PlanTaken(incarnation=number) for number in range(3, 100)))
    put({JOURNAL_FILE: WHOLE + later[:end]}, str(tmp_path / "run"))
    with Journal(tmp_path / "run") as journal:
        assert journal.history.incarnation == 2


@pytest.mark.parametrize("torn", [bytes(300) + b'"}\n', b'{"message": ' + bytes(1024) + b'"}\n', bytes(2000) + b"\n"])
def test_a_last_record_of_which_sectors_are_missing_was_never_written(tmp_path: Path, torn: bytes) -> None:
    put({JOURNAL_FILE: WHOLE + torn}, str(tmp_path / "run"))
    with Journal(tmp_path / "run") as journal:
        assert journal.history.incarnation == 2
        journal.write(PlanTaken(incarnation=3))
        assert journal.file.read_bytes() == WHOLE + records.encode(PlanTaken(incarnation=3))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_missing_sectors_before_the_last_record_are_damage(tmp_path: Path, place: int) -> None:
    lines = [*map(records.encode, RECORDS), records.encode(RECORDS[0])]
    lines[place] = bytes(600) + b"\n"
    put({JOURNAL_FILE: b"".join(lines)}, str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=f"line {place + 1} is no record"), Journal(tmp_path / "run"):
        pass


def test_a_torn_end_is_cut_off_on_disk_before_anything_follows(tmp_path: Path) -> None:
    put({JOURNAL_FILE: WHOLE + b'{"rec'}, str(tmp_path / "run"))
    with recorded(tmp_path, taken(tmp_path)) as history, Journal(tmp_path / "run") as journal:
        journal.write(PlanTaken(incarnation=3))
    [place] = [place for place, step in enumerate(history.steps) if isinstance(step, Wrote)]
    assert journal_of(Moment(history, place).synced().tree) == WHOLE


def test_a_record_that_could_neither_be_written_nor_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(RECORDS[0])
        with failing(lambda name, _: name in ("fsync", "truncate")), pytest.raises(OSError, match="Input/output"):
            journal.write(RECORDS[1])
        journal.write(RECORDS[2])
        assert list(records.decode(journal.file.read_bytes())) == [RECORDS[0], RECORDS[2]]
