"""python -m tests.disk --states 20000: the power fails at every moment, and a restart must find what was promised."""

import argparse
import random
import sys
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests import figures
from tests.disk.campaign import Campaign, Counts
from tests.disk.summary import tables, told

NAME = "disk states"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.disk", description=__doc__)
    parser.add_argument("--states", type=int, default=2000, help="how many states of the disk are restarted (2000)")
    parser.add_argument("--seed", type=int, help="which ones; without it one is chosen and printed")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with case N of the seed")
    parser.add_argument("--record", action="store_true", help=f'put the figures into {figures.FILE.name} as "{NAME}"')
    return parser


def main() -> int:
    """Run a campaign; 1 when a promise was broken. Ctrl-C ends it with what was found so far."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    console, counts = Console(), Counts()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=console) as progress:
        progress.console.print(f"seed {seed}")
        bar = progress.add_task("states", total=arguments.states)
        num_shown = 0

        def show(counts: Counts) -> None:
            nonlocal num_shown
            progress.update(bar, completed=counts.num_states)
            for violation in counts.violations[num_shown:]:
                progress.console.print(told(violation, seed), style="red", markup=False)
            num_shown = len(counts.violations)

        campaign = Campaign(num_states=arguments.states, seed=seed, first=arguments.first, on_case=show)
        campaign.run(counts)
    console.print(*tables(counts))
    if arguments.record:
        num = len(counts.violations)
        figures.record(NAME, cases=counts.scenarios, violations=num, wall_s=counts.wall_s, seed=seed)
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
