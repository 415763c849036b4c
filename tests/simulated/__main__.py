"""python -m tests.simulated --schedules 5000: whole studies on a simulated machine, whose faults a seed decides."""

import argparse
import random
import sys
import time
from contextlib import nullcontext, suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import figures
from tests.simulated.campaign import Outcome, Tally, campaign, judged, plans
from tests.simulated.minimise import fails_like, minimised
from tests.simulated.planted import PLANTED
from tests.simulated.seeds import of_line, to_line

SCHEDULES = "simulated schedules"
FAULTS = "faults in simulated schedules"
SHOWN = 3000


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulated", description=__doc__)
    parser.add_argument("--schedules", type=int, default=500, help="how many (500)")
    parser.add_argument("--seed", type=int, help="what they are drawn from; without it one is chosen and printed")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with schedule N of the seed")
    parser.add_argument("--line", metavar="JSON", help="run the one schedule of this line of seeds.txt")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="put this bug into the product, to see it found")
    parser.add_argument("--whole", action="store_true", help="do not make schedules that fail smaller")
    parser.add_argument("--record", action="store_true", help="put the figures into docs/reliability.json")
    return parser


def main() -> int:
    """Run a campaign; 1 when a promise was broken."""
    arguments = parser().parse_args()
    console = Console()
    with PLANTED[arguments.planted]() if arguments.planted else nullcontext():
        if arguments.line:
            return _run_line(arguments.line, console)
        return _run(arguments, console)


def _run_line(line: str, console: Console) -> int:
    outcome = judged(of_line(line))
    for violation in outcome.violations:
        console.print(violation, style="red", markup=False)
    console.print(f"{dict(outcome.end.happened)}; {len(outcome.end.epochs)} epochs, {outcome.end.virtual_s:.1f} s")
    return 1 if outcome.violations else 0


def _run(arguments: argparse.Namespace, console: Console) -> int:
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    tally, started = Tally(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, suppress(KeyboardInterrupt):
        progress.console.print(f"seed {seed}")
        bar = progress.add_task("schedules", total=arguments.schedules)

        def show(outcome: Outcome) -> None:
            progress.update(bar, advance=1, description=f"schedules, {len(tally.failed)} violated")
            if outcome.violations:
                _tell(outcome, seed, progress.console, is_whole=arguments.whole)

        campaign(plans(seed, arguments.schedules, arguments.first), tally, on_outcome=show)
    wall_s = time.monotonic() - started
    console.print(table(tally, wall_s))
    if arguments.record and not arguments.planted:
        # Two entries, since the cases of one are added up.
        for name, cases in ((SCHEDULES, dict(tally.policies)), (FAULTS, tally.faults)):
            figures.record(name, cases=cases, violations=len(tally.failed), wall_s=wall_s, seed=seed)
    return 1 if tally.failed else 0


def table(tally: Tally, wall_s: float) -> Table:
    """The figures of a campaign."""
    table = Table(title=f"{tally.num_schedules} schedules, {len(tally.failed)} violated, {wall_s:.0f} s")
    table.add_column("what")
    table.add_column("how often", justify="right")
    for what, num in tally.cases().items():
        table.add_row(what, f"{num:,}")
    return table


def _tell(outcome: Outcome, seed: int, console: Console, *, is_whole: bool) -> None:
    plan = outcome.end.plan
    console.print(f"schedule {outcome.number}: {'; '.join(map(str, plan.faults))}", markup=False)
    for violation in outcome.violations:
        console.print(f"  {violation[:SHOWN]}", style="red", markup=False)
    console.print(f"  again: python -m tests.simulated --seed {seed} --first {outcome.number} --schedules 1")
    if not is_whole:
        smallest = minimised(plan, fails=fails_like(outcome.violations[0]))
        console.print("  the smallest that fails alike, for seeds.txt:")
        console.print(to_line(smallest), markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
