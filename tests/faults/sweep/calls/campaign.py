"""Every system call of the code that writes files fails or is the last one, one after the other."""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.campaigns import Campaign, Round, option
from tests.faults.sweep.calls.programs import PROGRAMS
from tests.faults.sweep.calls.run import Stage
from tests.faults.sweep.calls.sweep import Bench, Case, Outcome
from tests.faults.sweep.campaign import case, scratch


@dataclass(frozen=True, kw_only=True)
class FailingCalls(Campaign):
    """Every fault at every system call of every program, or a sample of them."""

    figure: ClassVar[str] = "system calls"

    cases: int = option(0, "how many cases, one of each program at least; 0 for all")
    only: str = option("", "those alone whose name begins so", metavar="NAME")

    def run(self) -> Generator[Round, None, None]:
        with scratch() as folder, Stage() as stage:
            bench = Bench(stage, folder)
            every = [it for name in PROGRAMS for it in bench.cases(name) if str(it).startswith(self.only)]
            is_sample = self.cases and not self.only
            chosen = sample(every, self.cases, random.Random(self.seed)) if is_sample else every
            for it in chosen:
                yield _result(bench, it)


def sample(cases: Sequence[Case], num: int, generator: random.Random) -> list[Case]:
    """So many of them in their order: one of each program first, then whichever."""
    programs = dict.fromkeys(case.program for case in cases)
    chosen = {generator.choice([case for case in cases if case.program == program]) for program in programs}
    rest = [case for case in cases if case not in chosen]
    chosen.update(generator.sample(rest, min(len(rest), max(0, num - len(chosen)))))
    return [case for case in cases if case in chosen]


def _result(bench: Bench, tried: Case) -> Round:
    outcome = bench.run(tried)
    story = f" [{outcome.target}; said: {' | '.join(outcome.said)}]"
    violations = [violation + story for violation in outcome.violations]
    column = tried.fault.kind.value
    return case(str(tried), tried.program, column, _came_of(outcome), violations, counts=outcome.was_struck)


def _came_of(outcome: Outcome) -> str:
    if not outcome.was_struck:
        return "never met"
    if outcome.was_killed:
        return "killed"
    return "told as a failure" if any(map(_is_failure, outcome.said)) else "no harm done"


def _is_failure(line: str) -> bool:
    return line.startswith(("failed", "refused")) or (line.startswith("ended") and line != "ended None")
