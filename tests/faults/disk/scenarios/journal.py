"""The launcher's journal: every record that was written is there, and those that were being written in their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import JOURNAL_FILE, Journal
from stream_server.launcher.journal.records import AttemptStarting, JournalRecord, PlanTaken
from stream_server.storage.lines import whole_lines
from tests.faults.disk.scenarios.scenario import Tell

FOLDER = "run"


@dataclass(frozen=True, slots=True)
class Writing:
    """These records are about to be written."""

    records: tuple[JournalRecord, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """They are."""

    records: tuple[JournalRecord, ...]


@dataclass(frozen=True, slots=True)
class There:
    """All that the journal had at a start."""

    records: tuple[JournalRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Journals:
    """Launchers write a journal, one after the other; the first one finds `torn` bytes at its end, or no file."""

    name: str
    torn: bytes | None

    @classmethod
    def all(cls) -> "tuple[Journals, ...]":
        return (cls(name="a new journal", torn=None), cls(name="a torn journal", torn=b'{"message": "PlanTaken", "ep'))

    def prepare(self, folder: Path) -> Sequence[object]:
        if self.torn is None:
            return []
        there = tuple(record(number) for number in range(3))
        (folder / FOLDER).mkdir()
        (folder / FOLDER / JOURNAL_FILE).write_bytes(b"".join(map(records.encode, there)) + self.torn)
        return [There(there)]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        with Journal(folder / FOLDER) as journal:
            for first, num in ((10, 1), (20, 5), (30, 1)):
                write(journal, first, num, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        there = _written(told)
        for first, num in ((40, 1), (50, 3)):
            with Journal(folder / FOLDER) as journal:
                found = read(folder)
                rest = found[len(there) :]
                assert found[: len(there)] == there, f"of {len(there)} written records {len(found)} are there"
                assert rest == _tried(told)[: len(rest)], f"{rest} was never written"
                tell(There(found))
                write(journal, first, num, tell)
                there = (*found, *(record(number) for number in range(first, first + num)))
            assert read(folder) == there


def record(number: int) -> JournalRecord:
    """One of many, some of which are longer than a sector."""
    if number % 5 == 2:
        return AttemptStarting(simulation=number, attempt=0, folder=f"/runs/{number}/" * 60, public_key=None)
    return PlanTaken(incarnation=number)


def write(journal: Journal, first: int, num: int, tell: Tell) -> None:
    """Write so many records at once."""
    written = tuple(record(number) for number in range(first, first + num))
    tell(Writing(written))
    journal.write(*written)
    tell(Written(written))


def read(folder: Path) -> tuple[JournalRecord, ...]:
    """The records of the journal."""
    return tuple(records.decode(whole_lines((folder / FOLDER / JOURNAL_FILE).read_bytes())))


def _written(told: Sequence[object]) -> tuple[JournalRecord, ...]:
    there: tuple[JournalRecord, ...] = ()
    for fact in told:
        match fact:
            case There(records=found):
                there = found
            case Written(records=more):
                there = (*there, *more)
    return there


def _tried(told: Sequence[object]) -> tuple[JournalRecord, ...]:
    """The records that were being written when the power failed."""
    last = told[-1] if told else None
    return last.records if isinstance(last, Writing) else ()
