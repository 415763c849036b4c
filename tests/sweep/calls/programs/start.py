"""A server starts: it looks for what it can continue, begins an epoch, sweeps, and reads every file."""

from collections.abc import Iterator
from pathlib import Path

from stream_server.errors import StreamServerError
from stream_server.server.checkpoint.epochs import begin_epoch, read_epochs
from stream_server.server.checkpoint.generations import REASON_FILE, Generations
from stream_server.server.checkpoint.saver import Committed
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks import SoloRanks
from tests.server.checkpoint.stores import content, names, read, restart, save, store
from tests.sweep.calls.programs.program import Program
from tests.sweep.calls.ran import Ran, Say


def make(folder: Path) -> None:
    """Three generations, a save that was cut short, and a removal that was."""
    generations = store(folder, 1, 2, 3)
    for left in (generations.temporary(4, 1), folder / "000000.old"):
        (left / "rank-0").mkdir(parents=True)
        (left / "rank-0" / "samples.rows").write_bytes(b"half")
        (left / "study.state").write_bytes(b"")


def run(folder: Path, say: Say) -> None:
    generations = Generations(folder)
    try:
        manifest = find_usable(generations, SoloRanks()).manifest
    except StreamServerError as error:
        say(f"refused {error}")
        return
    number = 0 if manifest is None else manifest.generation
    say(f"found {number}")
    try:
        began = begin_epoch(folder, base=number, batches=10 * number, ranks=2, started="2026-01-02T00:00:00+00:00")
    except (StreamServerError, OSError) as error:
        say(f"refused {error}")
        return
    say(f"began {began.epoch}")
    try:
        generations.sweep()
        say(f"unmixed {read(folder, number) == content(number)}")
    except OSError as error:
        say(f"refused {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """The next start continues the newest generation, or the one before if the newest could not be read once."""
    assert ran.fault is not None
    found, began = ran.told("found"), [int(epoch) for epoch in ran.told("began")]
    unreadable = not ran.must_succeed and not ran.trace.was_killed and "/000003" in ran.target
    if "unmixed False" in ran.said:
        yield "a generation is not what was saved"
    if found and found != ["3"] and not (found == ["2"] and unreadable):
        yield f"continued generation {found} although 3 is good"
    if ran.must_succeed and ran.told("refused"):
        yield "refused for something that a program does not notice"
    if ran.is_done and not began and not ran.told("refused"):
        yield "neither began nor refused"
    if read_epochs(folder).newest not in ([began[0]] if began else [1, 2]):
        yield f"epoch {began} had begun, but the newest is {read_epochs(folder).newest}"
    again = restart(folder)
    if again != 3 and not (unreadable and again == 2):
        yield f"a later start continues generation {again}"
    yield from _of_the_folder(folder, again)


def _of_the_folder(folder: Path, found: int) -> Iterator[str]:
    newest = read_epochs(folder).newest
    began = begin_epoch(folder, base=found, batches=10 * found, ranks=2, started="2026-01-03T00:00:00+00:00")
    if began.epoch != newest + 1:
        yield f"epoch {began.epoch} began after {newest}"
    aside = {name for name in names(folder) if name.endswith(".damaged")}
    left = {name for name in names(folder) if not name.isdigit()} - aside
    if left or list(folder.glob("epochs.jsonl*.tmp")):
        yield f"left over after the restart: {sorted(left)}"
    if any(not (folder / name / REASON_FILE).exists() for name in aside) and found == 3:
        yield "a generation was set aside, and nobody knows why"
    if not isinstance(save(folder, 5, epoch=began.epoch), Committed) or restart(folder) != 5:
        yield "nothing can be saved after the restart"


PROGRAM = Program(name="start", make=make, run=run, judge=judge)
