"""python -m tests.network --rounds 200: studies whose network breaks in every way, and nothing may be lost or hang."""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.figures import record
from tests.network.campaign import Campaign, Result
from tests.network.node import allowed
from tests.network.summary import cases, line, table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.network", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="how many networks are drawn (200)")
    parser.add_argument("--seed", type=int, help="what breaks when; without it one is chosen and printed")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with round N of the seed")
    parser.add_argument("--keep", action="store_true", help="keep the folders of studies with violations")
    parser.add_argument("--record", action="store_true", help="put the figures into docs/reliability.json")
    return parser


def main() -> int:
    """Run a campaign; 1 when something was violated."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    console, start = Console(), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="net-"))
    why_not = allowed()
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, contextlib.suppress(KeyboardInterrupt):
        bar = progress.add_task("rounds", total=arguments.rounds)
        progress.console.print(f"seed {seed}")
        if why_not:
            progress.console.print(f"no partitions: there can be no other node here ({why_not})")

        def show(result: Result) -> None:
            progress.update(bar, advance=1)
            progress.console.print(line(result), markup=False)
            for violation in result.violations:
                progress.console.print(f"  {violation}", style="red", markup=False)
            if result.violations:
                progress.console.print(f"  again: --seed {seed} --first {result.number} --rounds 1; see {folder}")

        campaign = Campaign(
            num_rounds=arguments.rounds,
            seed=seed,
            folder=folder,
            first=arguments.first,
            partitions=not why_not,
            on_result=show,
        )
        for result in campaign.run():
            results.append(result)
    console.print(table(results))
    num_violated = sum(bool(result.violations) for result in results)
    if not (num_violated and arguments.keep):
        shutil.rmtree(folder)
    if arguments.record:
        found = {"rounds": len(results), "all": sum(it.num_connections for it in results)} | cases(results)
        record("network", cases=found, violations=num_violated, wall_s=time.monotonic() - start, seed=seed)
    return 1 if num_violated else 0


if __name__ == "__main__":
    sys.exit(main())
