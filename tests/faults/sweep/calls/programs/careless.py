"""A connection file is written where it is read: what the sweep must notice. It is part of no campaign."""

from pathlib import Path

from tests.faults.sweep.calls.programs import connection
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Say


def run(folder: Path, say: Say) -> None:
    text = (folder / connection.NAME).read_text().replace('"incarnation": 1', '"incarnation": 2')
    with (folder / connection.NAME).open("w") as file:
        file.write(text)
        say("written 2")


PROGRAM = Program(name="careless", make=connection.make, run=run, judge=connection.judge)
