"""python -m tests.chaos --kills 200: random processes of studies are killed, and nothing may be lost."""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.kills import Kill
from tests.chaos.plan import LEARNERS, Plan
from tests.chaos.summary import line, story, table
from tests.figures import record


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how many processes are killed (50)")
    parser.add_argument("--seed", type=int, help="what is killed when; without it one is chosen and printed")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with study N of the seed")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the server (2)")
    parser.add_argument("--learner", choices=LEARNERS, default="number", help="what the server trains (number)")
    parser.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich")
    parser.add_argument("--stops", action="store_true", help="stop some processes (SIGSTOP) instead of killing them")
    parser.add_argument("--record", action="store_true", help="write the figures into docs/reliability.json")
    parser.add_argument("--keep", action="store_true", help="keep the folders of studies with violations")
    return parser


def main() -> int:
    """Run a campaign; 1 when an invariant was violated."""
    arguments = parser().parse_args()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("kills", total=arguments.kills)

        def show_kill(plan: Plan, kill: Kill) -> None:
            progress.update(bar, advance=1, description=f"{plan.policy}: {kill.kind} in {kill.moment}")

        def show_outcome(outcome: Outcome) -> None:
            progress.console.print(line(outcome))
            for violation in outcome.violations:
                progress.console.print(f"  {violation}", style="red", markup=False)
            if outcome.violations:
                again = f"--seed {seed} --first {outcome.number} --kills {len(outcome.kills)}"
                progress.console.print(f"  {story(outcome)}")
                progress.console.print(f"  again: {again}; its files: {outcome.output_dir}")

        campaign = Campaign(
            num_kills=arguments.kills,
            seed=seed,
            folder=folder,
            num_ranks=arguments.ranks,
            learner=arguments.learner,
            mpi=arguments.mpi,
            stops=arguments.stops,
            first=arguments.first,
            on_kill=show_kill,
            on_outcome=show_outcome,
        )
        progress.console.print(f"seed {seed}")
        outcomes = campaign.run()
    console.print(table(outcomes))
    violated = any(outcome.violations for outcome in outcomes)
    if arguments.record:
        kills = Counter(f"{kill.kind}s" for outcome in outcomes for kill in outcome.kills)
        num_violations = sum(len(outcome.violations) for outcome in outcomes)
        wall_s = sum(outcome.wall_s for outcome in outcomes)
        of = "" if arguments.learner == "number" else f" of studies that train {arguments.learner}"
        record(f"chaos: kills{of}", cases=kills, violations=num_violations, wall_s=wall_s, seed=seed)
    if not (violated and arguments.keep):
        shutil.rmtree(folder)
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
