"""The programs that the sweep runs, by name; a bench takes one more, which it must find fault with."""

from tests.faults.sweep.calls.programs import careless, commit, connection, export, journal, output, record, start
from tests.faults.sweep.calls.programs.program import Program

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        *(commit.PROGRAM, start.PROGRAM, journal.PROGRAM, record.PROGRAM),
        *(connection.PROGRAM, output.PROGRAM, export.PROGRAM),
    )
}

EVERY = {**PROGRAMS, careless.PROGRAM.name: careless.PROGRAM}
