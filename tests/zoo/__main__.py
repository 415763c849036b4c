"""python -m tests.zoo: known bugs are put back one by one, and the tests must notice each."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests import figures
from tests.zoo.bug import Bug, Form, all_bugs, named
from tests.zoo.summary import line, listing, table
from tests.zoo.trial import Verdict, try_bug, try_without


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these bugs")
    parser.add_argument("--list", action="store_true", help="show what there is, and do nothing")
    parser.add_argument("--short", action="store_true", help="leave out what needs a long campaign")
    parser.add_argument("--without-baseline", action="store_true", help="do not run the tests without any bug first")
    parser.add_argument("--seed", type=int, help="of the property tests; without it one is chosen and printed")
    parser.add_argument("--record", action="store_true", help="keep the figures in docs/reliability.json")
    return parser


def main() -> int:
    """Try the bugs; 1 when one is not caught, or the tests fail without any."""
    arguments = parser().parse_args()
    bugs = [bug for bug in named(all_bugs(), arguments.names) if not (arguments.short and bug.form is Form.LONG)]
    console = Console()
    if arguments.list:
        console.print(listing(bugs))
        return 0
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    started = time.monotonic()
    console.print(f"seed {seed}")
    problem = "" if arguments.without_baseline else _without(bugs, seed, console)
    if problem:
        return 1
    verdicts: list[Verdict] = []
    try:
        _try_all(bugs, seed, console, verdicts)
    except KeyboardInterrupt:
        console.print("interrupted: what is known so far")
    console.print(table(verdicts))
    num_missed = sum(not verdict.is_caught for verdict in verdicts)
    is_whole = len(verdicts) == len(bugs)
    if arguments.record and is_whole:
        forms = Counter(str(verdict.bug.form) for verdict in verdicts if verdict.is_caught)
        figures.record(
            "bug zoo",
            cases={
                "bugs": len(bugs),
                "caught": len(bugs) - num_missed,
                **{f"caught, {it}": n for it, n in forms.items()},
            },
            violations=num_missed,
            wall_s=time.monotonic() - started,
            seed=seed,
        )
    return 0 if is_whole and not num_missed else 1


def _without(bugs: Sequence[Bug], seed: int, console: Console) -> str:
    with console.status("the same tests without any bug"):
        started = time.monotonic()
        problem = try_without(bugs, seed=seed)
    num = len({catcher for bug in bugs for catcher in bug.catchers})
    console.print(f"without any bug {num} tests pass in {time.monotonic() - started:.0f} s" if not problem else "")
    if problem:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    return problem


def _try_all(bugs: Sequence[Bug], seed: int, console: Console, verdicts: list[Verdict]) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("bugs", total=len(bugs))
        for bug in bugs:
            progress.update(bar, description=escape(bug.name))
            verdict = try_bug(bug, seed=seed)
            verdicts.append(verdict)
            progress.update(bar, advance=1)
            progress.console.print(line(verdict), markup=False, highlight=False)
            if not verdict.is_caught:
                progress.console.print(verdict.problem, style="red", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
