"""The zoo on screen."""

from collections.abc import Sequence

from rich.table import Table

from tests.zoo.bug import Bug
from tests.zoo.trial import Verdict


def line(verdict: Verdict) -> str:
    """One bug in words."""
    found = "caught" if verdict.is_caught else "NOT CAUGHT"
    return f"{verdict.bug.name}: {found} in {verdict.wall_s:.0f} s"


def table(verdicts: Sequence[Verdict]) -> Table:
    """Which test catches which bug, and how long that test took."""
    num_caught = sum(verdict.is_caught for verdict in verdicts)
    table = Table(title=f"{num_caught} of {len(verdicts)} bugs caught")
    table.add_column("bug, and the tests that catch it", overflow="fold")
    table.add_column("breaks")
    table.add_column("form")
    table.add_column("s", justify="right")
    for verdict in verdicts:
        bug = verdict.bug
        table.add_row(bug.name, bug.promises, str(bug.form), style="bold" if verdict.is_caught else "bold red")
        for catcher, seconds in verdict.caught_by.items():
            table.add_row(f"  {_short(catcher)}", "", "", f"{seconds:.1f}")
        if not verdict.is_caught:
            table.add_row(f"  NOT CAUGHT: {verdict.problem.partition(chr(10))[0]}", style="red")
    return table


def listing(bugs: Sequence[Bug]) -> Table:
    """What there is in the zoo."""
    table = Table(title=f"{len(bugs)} bugs")
    for heading in ("bug, and what is wrong", "breaks", "form"):
        table.add_column(heading)
    for bug in bugs:
        table.add_row(bug.name, bug.promises, str(bug.form), style="bold")
        table.add_row(f"  {bug.text}")
    return table


def _short(catcher: str) -> str:
    return catcher.removeprefix("tests/")
