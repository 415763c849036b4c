"""The very first start of a study makes its output folder, in which its launcher's journal is already."""

import json
from collections.abc import Iterator
from pathlib import Path

from stream_server.config import load
from stream_server.errors import StreamServerError
from stream_server.server.run.output import OutputFolder
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say

CONFIG = load(Path(__file__).parents[4] / "study" / "numpy_study" / "study.json", ())


def make(folder: Path) -> None:
    folder.mkdir()
    (folder / "journal.jsonl").touch()


def run(folder: Path, say: Say) -> None:
    try:
        OutputFolder(folder).prepare(CONFIG, resume=False)
        say("prepared")
    except (StreamServerError, OSError) as error:
        say(f"refused {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """Whatever became of the first start, the second one goes on."""
    assert ran.fault is not None
    if ran.is_done and "prepared" not in ran.said and (not ran.told("refused") or ran.must_succeed):
        yield "not prepared"
    try:
        OutputFolder(folder).prepare(CONFIG, resume=False)
    except StreamServerError as error:
        yield f"the study cannot be started again: {error}"
        return
    if json.loads((folder / "study.json").read_text()) != CONFIG.resolved():
        yield "study.json is not the study"
    left = sorted({path.name for path in folder.iterdir()} - {"study.json", "journal.jsonl"})
    if left:
        yield f"left over after the restart: {left}"


PROGRAM = Program(name="output", make=make, run=run, judge=judge)
