"""A launcher takes over a journal whose last line was torn, and writes records."""

from collections.abc import Iterator
from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import JournalRecord, LauncherStarted, PlanTaken
from stream_server.machine.run_folder import JOURNAL_FILE
from stream_server.messages.launcher_link import Attached
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say

NUM_RECORDS = 5
TORN = b'{"message": "Plan'


def make(folder: Path) -> None:
    with Journal(folder) as journal:
        for record in _before():
            journal.write(record)
    with (folder / JOURNAL_FILE).open("ab") as file:
        file.write(TORN)


def run(folder: Path, say: Say) -> None:
    """The last record is noted: when it cannot be written it goes before the next one, which is said once it is."""
    try:
        with Journal(folder) as journal:
            say(f"opened {journal.history.incarnation}")
            for number in range(NUM_RECORDS):
                try:
                    journal.write(_record(number))
                    say(f"written {number}")
                except OSError as error:
                    say(f"refused {number}: {error}")
            journal.note(_record(NUM_RECORDS))
            try:
                journal.write(_record(NUM_RECORDS + 1))
                say(f"written {NUM_RECORDS}")
                say(f"written {NUM_RECORDS + 1}")
            except OSError as error:
                say(f"refused {NUM_RECORDS + 1}: {error}")
    except (OSError, ConfigError) as error:
        say(f"refused all: {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """The next launcher finds each record that was reported, once and in order, and whatever it finds is whole."""
    assert ran.fault is not None
    written = [_record(int(number)) for number in ran.told("written")]
    if ran.must_succeed and len(written) < NUM_RECORDS + 2:
        yield "a record was refused for something that a program does not notice"
    if ran.is_done and len(ran.told("written")) + len(ran.told("refused")) < NUM_RECORDS + 1 and ran.told("opened"):
        yield "neither written nor refused"
    with Journal(folder) as journal:
        journal.write(PlanTaken(incarnation=9))
    found = list(records.decode((folder / JOURNAL_FILE).read_bytes()))
    before = _before()
    if found[: len(before)] != before or found[-1:] != [PlanTaken(incarnation=9)]:
        yield f"records are missing: {found}"
    mine = found[len(before) : -1]
    if len(set(mine)) < len(mine):
        yield f"a record is there twice: {mine}"
    if [record for record in mine if record in written] != written:
        yield f"written: {written}, found: {mine}"
    # What was noted is written without a word; a launcher that is killed can give none; and what was written, but not
    # synced, cannot be taken back on a disk that does not even make files shorter.
    unsaid = [record for record in mine if record not in written and record != _record(NUM_RECORDS)]
    if len(unsaid) > (1 if ran.trace.was_killed or ran.fault.kind.lasts else 0):
        yield f"there although their writing failed: {unsaid}"


def _before() -> list[JournalRecord]:
    started = LauncherStarted(pid=1, boot="b", link="ipc:///tmp/x/link", supervises=True, resumed=False)
    return [started, PlanTaken(incarnation=1)]


def _record(number: int) -> JournalRecord:
    return Attached(token=1, simulation=number, attempt=0)


PROGRAM = Program(name="journal", make=make, run=run, judge=judge)
