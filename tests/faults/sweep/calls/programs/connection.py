"""A connection file is put in the place of an older one."""

from collections.abc import Iterator
from pathlib import Path

from stream_server.messages.connection import ConnectionFile
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say

NAME = "connection.json"


def make(folder: Path) -> None:
    folder.mkdir()
    _file(1).write(folder / NAME)


def run(folder: Path, say: Say) -> None:
    try:
        _file(2).write(folder / NAME)
        say("written 2")
    except OSError as error:
        say(f"refused {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """There is always a whole file for whoever reads it, and only its owner can; nothing is beside it in the end."""
    assert ran.fault is not None
    found = ConnectionFile.read(folder / NAME).incarnation
    if found not in ([2] if ran.told("written") else [1, 2]):
        yield f"said {ran.said}, found that of incarnation {found}"
    if ran.is_done and not ran.told("written") and (not ran.told("refused") or ran.must_succeed):
        yield "not written"
    if any(path.stat().st_mode & 0o077 for path in folder.iterdir()):
        yield "others may read it"
    _file(3).write(folder / NAME)
    if ConnectionFile.read(folder / NAME).incarnation != 3:
        yield "the next one is not there"
    left = sorted(path.name for path in folder.iterdir() if path.name != NAME)
    if left:
        yield f"left over, with its keys: {left}"


def _file(incarnation: int) -> ConnectionFile:
    return ConnectionFile(study="run", incarnation=incarnation, host="node", control=("ipc:///tmp/x/control-0",))


PROGRAM = Program(name="connection", make=make, run=run, judge=judge)
