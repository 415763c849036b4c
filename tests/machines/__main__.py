"""python -m tests.machines --examples 2000: every state machine of the project, through many histories."""

import argparse
import logging
import random
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import figures
from tests.machines.registry import NAMES
from tests.machines.running import Outcome, run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="histories of each machine (2000)")
    parser.add_argument("--seed", type=int, help="which histories; without it one is chosen and printed")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--record", action="store_true", help="write the figures into docs/reliability.json")
    return parser


def main() -> int:
    """Run the machines; 1 when one of them found a violation."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    console, started = Console(), time.monotonic()
    logging.disable(logging.CRITICAL)
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        progress.console.print(f"seed {seed}")
        bar = progress.add_task("machines", total=len(arguments.only) * arguments.examples)
        try:
            for number, name in enumerate(arguments.only):
                progress.update(bar, description=name, completed=number * arguments.examples)
                outcome = run(
                    name, num_examples=arguments.examples, seed=seed, on_example=lambda: progress.advance(bar)
                )
                outcomes.append(outcome)
                if outcome.violation:
                    progress.console.print(f"{name}:\n{outcome.violation}", style="red", markup=False)
                    again = f"python -m tests.machines --only '{name}' --examples {arguments.examples} --seed {seed}"
                    progress.console.print(f"again: {again}")
        except KeyboardInterrupt:
            progress.console.print("interrupted")
    console.print(table(outcomes))
    num_violations = sum(bool(it.violation) for it in outcomes)
    if arguments.record:
        figures.record(
            "state machines",
            cases={it.name: it.num_examples for it in outcomes},
            violations=num_violations,
            wall_s=time.monotonic() - started,
            seed=seed,
        )
    return 1 if num_violations else 0


def table(outcomes: list[Outcome]) -> Table:
    """The histories of each machine, and whether one of them broke a promise."""
    table = Table("machine", "examples", "seconds", "violations")
    for it in outcomes:
        table.add_row(it.name, str(it.num_examples), f"{it.wall_s:.0f}", "1" if it.violation else "0")
    return table


if __name__ == "__main__":
    sys.exit(main())
