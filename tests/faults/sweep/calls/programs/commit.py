"""Checkpoint 3 is saved and committed beside 1 and 2, by the saver's thread, and 1 is removed."""

from collections.abc import Iterator
from pathlib import Path

from stream_server.server.checkpoint.failed_saves import reason_of
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.saver import Saver
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say
from tests.support.checkpoint_stores import (
    content,
    names,
    part,
    read,
    restart,
    save,
    save_with,
    start,
    store,
)


def make(folder: Path) -> None:
    store(folder, 1, 2)


def run(folder: Path, say: Say) -> None:
    """Save; when that fails, save once more under the next number, as a study does."""
    with Saver(CheckpointFolder(folder, keep=2), incarnation=1, rank=0) as saver:
        for number in (3, 4):
            outcome = save_with(saver, number, [part(path, data) for path, data in content(number).items()])
            if isinstance(outcome, Path):
                say(f"committed {number}")
                return
            say(f"failed {number}: {reason_of(outcome)}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """A restart continues the newest checkpoint that was reported, or the one that was being made, and can save."""
    assert ran.fault is not None
    committed = [int(number) for number in ran.told("committed")]
    if ran.is_done and not committed and not ran.fault.kind.lasts:
        yield "the save after the one that failed failed too"
    if ran.must_succeed and committed != [3]:
        yield "the save failed of something that a program does not notice"
    there = CheckpointFolder(folder).numbers()
    if not committed and not {1, 2} <= set(there):
        yield f"nothing new was committed, and of the older checkpoints there are {there}"
    if any(read(folder, number) != content(number) for number in there):
        yield f"one of the checkpoints {there} is not as it was saved"
    if not all(text.partition(": ")[2] for text in ran.told("failed")):
        yield "a save failed, and nobody was told why"
    found = restart(folder)
    if found not in (committed or [2, 3]):
        yield f"committed: {committed}, but checkpoint {found} is continued"
    left = {name for name in names(folder) if not name.isdigit()}
    if left:
        yield f"left over after the restart: {sorted(left)}"
    start(folder, found)
    if not isinstance(save(folder, found + 1, incarnation=2), Path) or restart(folder) != found + 1:
        yield "nothing can be saved after the restart"


PROGRAM = Program(name="commit", make=make, run=run, judge=judge)
