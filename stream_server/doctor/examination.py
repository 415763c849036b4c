"""The examination of this machine, and what a person sees of it."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_server.config import StudyConfig
from stream_server.doctor import checks
from stream_server.doctor.checks import Finding, Severity

MAX_WIDTH = 10_000
STYLES = {Severity.GOOD: "green", Severity.NOTE: "yellow", Severity.REPAIR: "bold red"}


def examine(config: StudyConfig | None = None) -> Iterator[Finding]:
    """Look at one thing after the other, for a study if there is one.

    torch and MPI take some seconds; nothing is left behind.

    Raises:
        ConfigError: the server of the study cannot be started here at all.
    """
    yield checks.check_python()
    yield checks.check_torch()
    yield checks.check_mpi(config)
    yield checks.check_memory()
    yield checks.check_open_files()
    yield checks.check_ports()
    yield checks.check_scheduler()


def report(config: StudyConfig | None = None) -> int:
    """Examine this machine and print the findings; returns 1 if something must be repaired, otherwise 0.

    Raises:
        ConfigError: see `examine`.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        # A path in a file or a pipe is to be copied, and may be long.
        console.width = MAX_WIDTH
    with console.status("Looking at Python, torch and MPI"):
        found = list(examine(config))
    console.print(as_table(found), Text(conclusion(found)))
    return int(any(it.severity is Severity.REPAIR for it in found))


def as_table(found: Sequence[Finding]) -> Table:
    """The findings, one in a row, each with its advice below."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for it in found:
        table.add_row(Text(it.severity.value, STYLES[it.severity]), it.subject, Text(it.found))
        if it.advice:
            table.add_row("", "", Text(it.advice, STYLES[it.severity]))
    return table


def conclusion(found: Sequence[Finding]) -> str:
    """The last line."""
    subjects = [it.subject for it in found if it.severity is Severity.REPAIR]
    if subjects:
        return f"to repair: {', '.join(subjects)}"
    return "ready: stream-study new heat my-study"
