"""Known bugs are put back one by one, and the tests must notice each."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table

from tests.campaigns import Campaign, Round, option
from tests.zoo.bug import Bug, Form, all_bugs, named
from tests.zoo.trial import try_bug, try_without


@dataclass(frozen=True, kw_only=True)
class Zoo(Campaign):
    """Each bug in a copy of the project, where the tests that should catch it run."""

    figure: ClassVar[str] = "bug zoo: caught"

    names: Sequence[str] = option((), "only these bugs", nargs="*", metavar="BUG")
    list: bool = option(False, "show what there is, and do nothing")
    short: bool = option(False, "leave out what needs a long campaign")
    without_baseline: bool = option(False, "do not run the tests without any bug first")

    def __post_init__(self) -> None:
        assert self.bugs

    @property
    def bugs(self) -> Sequence[Bug]:
        return [bug for bug in named(all_bugs(), self.names) if not (self.short and bug.form is Form.LONG)]

    @property
    def total(self) -> int:
        return len(self.bugs)

    @property
    def listing(self) -> Table | None:
        if not self.list:
            return None
        table = Table("bug, and what is wrong", "breaks", "form", title=f"{len(self.bugs)} bugs")
        for bug in self.bugs:
            table.add_row(bug.name, bug.promises, str(bug.form), style="bold")
            table.add_row(f"  {bug.text}")
        return table

    def run(self) -> Generator[Round, None, None]:
        if not self.without_baseline:
            started = time.monotonic()
            problem = try_without(self.bugs, seed=self.seed)
            text = f"without any bug: {time.monotonic() - started:.0f} s"
            yield Round(text=text, violations=[problem] if problem else [], size=0)
            if problem:
                return
        for bug in self.bugs:
            yield _tried(bug, self.seed)


def _tried(bug: Bug, seed: int) -> Round:
    verdict = try_bug(bug, seed=seed)
    speed = "by tests of less than 2 s" if bug.form is Form.QUICK else "by longer tests"
    catchers = "".join(f"\n  {seconds:6.1f} s  {catcher}" for catcher, seconds in verdict.caught_by.items())
    return Round(
        cases={speed: 1} if verdict.is_caught else {},
        table={(bug.promises, "bugs"): 1, (bug.promises, "caught"): int(verdict.is_caught)},
        violations=[] if verdict.is_caught else [f"NOT CAUGHT: {verdict.problem}"],
        text=f"{bug.name}: {verdict.wall_s:.0f} s{catchers}",
        again=bug.name,
    )
