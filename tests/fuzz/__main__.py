"""python -m tests.fuzz --seconds 600: random inputs for every reader of bytes from outside; none may upset it."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import figures
from tests.fuzz.campaign import Campaign, Outcome
from tests.fuzz.programs import programs


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="what is fuzzed (all)")
    parser.add_argument("--seconds", type=float, default=300, help="how long all of it takes (300)")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="processes side by side (2)")
    parser.add_argument("--seed", type=int, help="of the random changes; without it one is chosen and printed")
    parser.add_argument("--keep", action="store_true", help="keep new inputs that reach more, in tests/fuzz/corpus")
    parser.add_argument("--record", action="store_true", help="put the figures into docs/reliability.json")
    return parser


def main() -> int:
    """Run a campaign; 1 when a promise was broken."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(31) or 1 if arguments.seed is None else arguments.seed
    console = Console()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            chosen = programs(tuple(arguments.targets), Path(folder))
        except ValueError as error:
            console.print(str(error), style="red", markup=False)
            return 2
        console.print(f"seed {seed}")
        outcomes = fuzzed(
            Campaign(
                programs=chosen,
                folder=Path(folder),
                seed=seed,
                seconds=arguments.seconds,
                at_once=arguments.at_once,
                keeps=arguments.keep,
            ),
            console,
        )
    console.print(table(outcomes))
    num_broken = sum(bool(outcome.told) for outcome in outcomes)
    if arguments.record:
        cases = {outcome.name: outcome.num_inputs for outcome in outcomes}
        figures.record("fuzz", cases=cases, violations=num_broken, wall_s=time.monotonic() - start, seed=seed)
    return 1 if num_broken else 0


def fuzzed(campaign: Campaign, console: Console) -> list[Outcome]:
    """Run a campaign and show how far it is, and what it finds."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("targets", total=len(campaign.programs))
        for outcome in campaign.run():
            progress.update(bar, advance=1)
            if outcome.told:
                progress.console.print(f"{outcome.name}: BROKEN by {outcome.found}", style="red", markup=False)
                progress.console.print(outcome.told, markup=False, highlight=False)
                again = f"python -m tests.fuzz.process {outcome.name} {outcome.found}"
                progress.console.print(f"  again: {again}", markup=False, soft_wrap=True)
    return campaign.outcomes


def table(outcomes: list[Outcome]) -> Table:
    """Inputs by target, and their sum."""
    total = sum(outcome.num_inputs for outcome in outcomes)
    num_broken = sum(bool(outcome.told) for outcome in outcomes)
    table = Table(title=f"{len(outcomes)} targets, {total:,} inputs, {num_broken} broken")
    table.add_column("target")
    for heading in ("inputs", "a second", "new ones", "MiB at most"):
        table.add_column(heading, justify="right")
    table.add_column("found")
    for it in sorted(outcomes, key=lambda outcome: outcome.name):
        speed = it.num_inputs / max(it.wall_s, 1e-9)
        found = it.found.name if it.found else "died" if it.told else "nothing"
        table.add_row(it.name, f"{it.num_inputs:,}", f"{speed:,.0f}", str(it.num_new), str(it.peak_mib), found)
    return table


if __name__ == "__main__":
    sys.exit(main())
