"""A server starts: it looks for what it can continue, begins an incarnation, sweeps, and reads every file."""

from collections.abc import Iterator
from pathlib import Path

from stream_server.errors import StreamServerError
from stream_server.server.checkpoint.folder import REASON_FILE, CheckpointFolder
from stream_server.server.checkpoint.incarnations import begin_incarnation, read_incarnations
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks.communicator import SoloRanks
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say
from tests.support.checkpoint_stores import content, names, read, restart, save, store


def make(folder: Path) -> None:
    """Three checkpoints, a save that was cut short, and a removal that was."""
    checkpoints = store(folder, 1, 2, 3)
    for left in (checkpoints.temporary(4, 1), folder / "000000.old"):
        (left / "rank-0").mkdir(parents=True)
        (left / "rank-0" / "samples.rows").write_bytes(b"half")
        (left / "study.state").write_bytes(b"")


def run(folder: Path, say: Say) -> None:
    checkpoints = CheckpointFolder(folder)
    try:
        manifest = find_usable(checkpoints, SoloRanks())
    except StreamServerError as error:
        say(f"refused {error}")
        return
    number = 0 if manifest is None else manifest.checkpoint
    say(f"found {number}")
    try:
        began = begin_incarnation(
            folder, base=number, batches=10 * number, ranks=2, started="2026-01-02T00:00:00+00:00"
        )
    except (StreamServerError, OSError) as error:
        say(f"refused {error}")
        return
    say(f"began {began.incarnation}")
    try:
        checkpoints.sweep()
        say(f"unmixed {read(folder, number) == content(number)}")
    except OSError as error:
        say(f"refused {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """The next start continues the newest checkpoint, or the one before if the newest could not be read once."""
    assert ran.fault is not None
    found, began = ran.told("found"), [int(incarnation) for incarnation in ran.told("began")]
    unreadable = not ran.must_succeed and not ran.trace.was_killed and "/000003" in ran.target
    if "unmixed False" in ran.said:
        yield "a checkpoint is not what was saved"
    if found and found != ["3"] and not (found == ["2"] and unreadable):
        yield f"continued checkpoint {found} although 3 is good"
    if ran.must_succeed and ran.told("refused"):
        yield "refused for something that a program does not notice"
    if ran.is_done and not began and not ran.told("refused"):
        yield "neither began nor refused"
    if read_incarnations(folder).newest not in ([began[0]] if began else [1, 2]):
        yield f"incarnation {began} had begun, but the newest is {read_incarnations(folder).newest}"
    again = restart(folder)
    if again != 3 and not (unreadable and again == 2):
        yield f"a later start continues checkpoint {again}"
    yield from _of_the_folder(folder, again)


def _of_the_folder(folder: Path, found: int) -> Iterator[str]:
    newest = read_incarnations(folder).newest
    began = begin_incarnation(folder, base=found, batches=10 * found, ranks=2, started="2026-01-03T00:00:00+00:00")
    if began.incarnation != newest + 1:
        yield f"incarnation {began.incarnation} began after {newest}"
    aside = {name for name in names(folder) if name.endswith(".damaged")}
    left = {name for name in names(folder) if not name.isdigit()} - aside
    if left or list(folder.glob("incarnations.json*.tmp")):
        yield f"left over after the restart: {sorted(left)}"
    if any(not (folder / name / REASON_FILE).exists() for name in aside) and found == 3:
        yield "a checkpoint was set aside, and nobody knows why"
    if not isinstance(save(folder, 5, incarnation=began.incarnation), Path) or restart(folder) != 5:
        yield "nothing can be saved after the restart"


PROGRAM = Program(name="start", make=make, run=run, judge=judge)
