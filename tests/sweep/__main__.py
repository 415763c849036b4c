"""python -m tests.sweep [calls] [corruption]: a fault in every place, one after the other, and nothing may be lost."""

import argparse
import random
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests import figures
from tests.sweep.calls.campaign import CallSweep
from tests.sweep.campaign import Result, Sweep, Tally, run, scratch
from tests.sweep.corruption.campaign import CorruptionSweep
from tests.sweep.summary import table

SWEEPS: dict[str, Sweep] = {"calls": CallSweep(), "corruption": CorruptionSweep()}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    defaults = ", ".join(f"{name}: {sweep.num_cases or 'all'}" for name, sweep in SWEEPS.items())
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"which ones: {', '.join(SWEEPS)} (all)")
    parser.add_argument("--cases", type=int, default=0, help=f"how many cases of each ({defaults})")
    parser.add_argument("--seed", type=int, help="which cases; without it one is chosen and printed")
    parser.add_argument("--only", default="", metavar="NAME", help="those alone whose name begins so")
    parser.add_argument("--record", action="store_true", help=f"put the figures into {figures.FILE.name}")
    return parser


def main() -> int:
    """Run sweeps; 1 when something was violated. Ctrl-C ends the one that runs with what it has found so far."""
    arguments = parser().parse_args()
    unknown = set(arguments.sweeps) - set(SWEEPS)
    if unknown:
        parser().error(f"there is no sweep {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    console = Console()
    violated = False
    for name in arguments.sweeps or SWEEPS:
        sweep = SWEEPS[name]
        num = arguments.cases or sweep.num_cases
        tally = _swept(sweep, f"{name} --seed {seed} --cases {num}", seed, num, arguments.only, console)
        console.print(table(sweep.figure, tally))
        violated |= bool(tally.violations) or not tally.num_cases
        if arguments.record and not arguments.only:
            cases, violations = tally.figures(), len(tally.violations)
            figures.record(sweep.figure, cases=cases, violations=violations, wall_s=tally.wall_s, seed=seed)
    return 1 if violated else 0


def _swept(sweep: Sweep, again: str, seed: int, num: int, only: str, console: Console) -> Tally:
    tally = Tally()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with scratch() as folder:
        try:
            with (
                Progress(*columns, console=console) as progress,
                sweep.planned(folder, seed=seed, num=num, only=only) as cases,
            ):
                progress.console.print(f"{sweep.figure}: seed {seed}")
                bar = progress.add_task(sweep.figure, total=len(cases))

                def show(result: Result) -> None:
                    progress.update(bar, advance=1)
                    for violation in result.violations:
                        progress.console.print(f"{result.name}: {violation}", style="red", markup=False)
                    if result.violations:
                        line = f"  again: python -m tests.sweep {again} --only '{result.name}'"
                        progress.console.print(line, markup=False, soft_wrap=True)

                run(cases, tally, show)
        except KeyboardInterrupt:
            console.print("interrupted: this is what was found so far")
    return tally


if __name__ == "__main__":
    sys.exit(main())
