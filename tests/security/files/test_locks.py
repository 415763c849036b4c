"""Nobody else can hold the locks of a study."""

import grp
from pathlib import Path

import pytest

from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import LauncherLeft
from stream_server.machine import run_folder
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock
from stream_server.server.checkpoint.incarnations import begin_incarnation
from stream_server.storage.ownership import private_files
from tests.needs import need
from tests.security.stranger import Stranger

GROUP = grp.getgrgid(1)
# Locks all that it can open, says how much that is, and keeps it until it is told to leave.
HOLD_ALL = """
kept = []
for root, folders, files in os.walk(sys.argv[1]):
    for name in files:
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
            try:
                kept.append(os.open(os.path.join(root, name), flags))
                fcntl.flock(kept[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                pass
print(len(kept), flush=True)
sys.stdin.read()
"""


def use(folder: Path) -> None:
    """Take every lock of a run once."""
    with StudyLock(folder / RUN_LOCK, "test"), StudyLock(folder / SERVER_LOCK, "test"), Journal(folder) as journal:
        journal.note(LauncherLeft(exit_code=0))
        begin_incarnation(folder / "checkpoints", base=0, batches=0, ranks=1, started="now")


@pytest.mark.parametrize(
    ("group", "others", "num_opened"),
    [(None, Stranger(), 0), (None, Stranger(GROUP.gr_gid), 0), (GROUP.gr_name, Stranger(GROUP.gr_gid), 2)],
    ids=["stranger", "of our group", "of the group that may read"],
)
def test_whoever_locks_all_that_he_can_open_stops_no_study(
    shared: Path, stranger: Stranger, group: str | None, others: Stranger, num_opened: int
) -> None:
    need("root" if others.groups else "a second user")
    folder = shared / "run"
    with private_files(group_reads=group is not None):
        run_folder.claim(folder, group)
        (folder / "report.json").touch()
        use(folder)
        with others.start(HOLD_ALL, folder, before="import fcntl") as process:
            assert process.stdout is not None
            # Those of the group read the report and incarnations.json.
            assert int(process.stdout.readline()) == num_opened
            use(folder)
            process.communicate(timeout=120)
