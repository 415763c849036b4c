"""The sweep of system calls."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.sweep.calls.programs import PROGRAMS
from tests.sweep.calls.run import Stage
from tests.sweep.calls.sweep import Bench, Case, Outcome
from tests.sweep.campaign import Case as AnyCase
from tests.sweep.campaign import Result


@dataclass(frozen=True, slots=True)
class CallSweep:
    """Every fault at every system call of every program, or a sample of them."""

    figure: str = "system calls"
    num_cases: int = 0

    @contextmanager
    def planned(self, folder: Path, *, seed: int, num: int, only: str) -> Iterator[Sequence[AnyCase]]:
        """`num` cases of all, or every one when it is 0."""
        with Stage() as stage:
            bench = Bench(stage, folder)
            every = [case for name in PROGRAMS for case in bench.cases(name) if str(case).startswith(only)]
            chosen = every if not num or only else sample(every, num, random.Random(seed))
            yield [partial(_result, bench, case) for case in chosen]


def sample(cases: Sequence[Case], num: int, generator: random.Random) -> list[Case]:
    """So many of them in their order: one of each program first, then whichever."""
    programs = dict.fromkeys(case.program for case in cases)
    chosen = {generator.choice([case for case in cases if case.program == program]) for program in programs}
    rest = [case for case in cases if case not in chosen]
    chosen.update(generator.sample(rest, min(len(rest), max(0, num - len(chosen)))))
    return [case for case in cases if case in chosen]


def _result(bench: Bench, case: Case) -> Result:
    outcome = bench.run(case)
    story = f" [{outcome.target}; said: {' | '.join(outcome.said)}]"
    return Result(
        name=str(case),
        row=(case.program, case.fault.kind.value),
        outcome=_came_of(outcome),
        violations=tuple(violation + story for violation in outcome.violations),
        counts=outcome.was_struck,
    )


def _came_of(outcome: Outcome) -> str:
    if not outcome.was_struck:
        return "never met"
    if outcome.was_killed:
        return "killed"
    return "told as a failure" if any(map(_is_failure, outcome.said)) else "no harm done"


def _is_failure(line: str) -> bool:
    return line.startswith(("failed", "refused")) or (line.startswith("ended") and line != "ended None")
