"""The journal of a launcher."""

from pathlib import Path

from stream_server.errors import ConfigError
from stream_server.launcher.journal import records
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import (
    AttemptStarted,
    AttemptStarting,
    JournalRecord,
    LauncherStarted,
    PlanTaken,
)
from stream_server.machine.run_folder import JOURNAL_FILE
from stream_server.messages.launcher_link import Failed
from tests.faults.sweep.corruption.stores.store import Store, Verdict


def make(folder: Path, study: int) -> None:
    with Journal(folder) as journal:
        for record in _records(study):
            journal.write(record)


def read(folder: Path) -> Verdict:
    """Open it as the next launcher does."""
    try:
        with Journal(folder):
            pass
    except ConfigError:
        return Verdict.REFUSED
    found, wanted = list(records.decode((folder / JOURNAL_FILE).read_bytes())), _records(0)
    if found == wanted:
        return Verdict.WHOLE
    assert found == wanted[: len(found)], f"another past is believed: {found}"
    return Verdict.SHORTER


def _records(study: int) -> list[JournalRecord]:
    link = f"ipc:///tmp/{study}/link"
    started = LauncherStarted(pid=1234, boot="b", link=link, supervises=True, resumed=False)
    attempts = range(study, study + 4)
    return [
        started,
        PlanTaken(incarnation=1),
        *(AttemptStarting(simulation=it, attempt=0, folder=f"/runs/{it}", public_key=None) for it in attempts),
        *(AttemptStarted(simulation=it, attempt=0, handle=f"{2000 + it} 99") for it in attempts),
        *(Failed(simulation=it, attempt=0, reason="crashed", excuse="") for it in attempts),
    ]


STORE = Store(
    name="journal", make=make, read=read, targets=(JOURNAL_FILE,), ends_anywhere=(JOURNAL_FILE,), is_unbound=True
)
