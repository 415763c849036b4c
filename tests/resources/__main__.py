"""python -m tests.resources: disks, memory, open files and time run out or jump, and nothing may be lost."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.figures import record
from tests.resources.campaign import KINDS, Outcome, steps


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.resources", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is done, with other sizes (1)")
    parser.add_argument("--seed", type=int, help="what sizes and moments are drawn from; without it one is chosen")
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind of case only; may be repeated")
    parser.add_argument("--record", action="store_true", help="write the figures into docs/reliability.json")
    return parser


def table(outcomes: Sequence[Outcome], wall_s: float) -> Table:
    """How many cases of each kind there were, and how many violations."""
    found = Table(title=f"{wall_s:.0f} s")
    for column in ("kind", "cases", "violations"):
        found.add_column(column, justify="left" if column == "kind" else "right")
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.kind == kind]
        found.add_row(kind, f"{sum(it.num for it in mine):,}", f"{sum(len(it.violations) for it in mine)}")
    return found


def main() -> int:
    """Run a campaign; 1 when something was violated. Ctrl-C shows what was found so far."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    todo = list(steps(seed, rounds=arguments.rounds, kinds=arguments.only or KINDS))
    outcomes: list[Outcome] = []
    console, started = Console(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        progress.console.print(f"seed {seed}")
        bar = progress.add_task("", total=len(todo))
        try:
            for step in todo:
                progress.update(bar, description=f"{step.kind}: {step.name}")
                outcome = step.outcome()
                outcomes.append(outcome)
                progress.advance(bar)
                for violation in outcome.violations:
                    progress.console.print(f"{step.kind}, {step.name}: {violation}", style="red", markup=False)
        except KeyboardInterrupt:
            progress.console.print("interrupted")
    wall_s = time.monotonic() - started
    console.print(table(outcomes, wall_s))
    num_violations = sum(len(outcome.violations) for outcome in outcomes)
    if num_violations:
        console.print(f"again: --seed {seed} --rounds {arguments.rounds}")
    if arguments.record:
        cases = Counter[str]()
        for outcome in outcomes:
            cases[outcome.kind] += outcome.num
        record("resources", cases=cases, violations=num_violations, wall_s=wall_s, seed=seed)
    return 1 if num_violations else 0


if __name__ == "__main__":
    sys.exit(main())
