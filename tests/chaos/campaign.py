"""Study after study under fire, until so many processes have been killed."""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.evidence import gather
from tests.chaos.invariants import Evidence, violations
from tests.chaos.kills import Kill
from tests.chaos.ordeal import Hung, Ordeal
from tests.chaos.plan import Plan
from tests.chaos.timeline import replayed

CALM_S = 90.0
# The longest that a stopped process may go unnoticed, and what follows then.
STOP_S = 60.0
MIN_KILLS, MAX_KILLS = 4, 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One study of a campaign; `replays` has the number of batches that each restart redid."""

    number: int
    plan: Plan
    kills: Sequence[Kill]
    num_epochs: int
    replays: Sequence[int]
    violations: Sequence[str]
    wall_s: float
    output_dir: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """`num_kills` kills, drawn from `seed`; the first study is number `first`.

    `on_kill` is told of each kill, `on_outcome` of each study. The folder of a study without violations is removed.
    """

    num_kills: int
    seed: int
    folder: Path
    num_ranks: int = 2
    learner: str = "number"
    mpi: str = "mpich"
    stops: bool = False
    first: int = 0
    on_kill: Callable[[Plan, Kill], None] = lambda plan, kill: None
    on_outcome: Callable[[Outcome], None] = lambda outcome: None

    def run(self) -> list[Outcome]:
        """Run it; a study that ended undisturbed counts, too."""
        outcomes: list[Outcome] = []
        while (left := self.num_kills - sum(len(outcome.kills) for outcome in outcomes)) > 0:
            number = self.first + len(outcomes)
            plan = Plan.drawn(self.seed, number, num_ranks=self.num_ranks, learner=self.learner)
            most = random.Random(f"{plan.seed}/kills").randint(MIN_KILLS, MAX_KILLS)
            outcome = self._study(number, plan, min(left, most))
            self.on_outcome(outcome)
            outcomes.append(outcome)
        return outcomes

    def _study(self, number: int, plan: Plan, max_kills: int) -> Outcome:
        folder = self.folder / f"study-{number}"
        folder.mkdir()
        ordeal = Ordeal(
            plan=plan,
            output_dir=folder / "run",
            max_kills=max_kills,
            mpi=self.mpi,
            stops=self.stops,
            calm_s=CALM_S + (STOP_S if self.stops else 0),
            on_kill=lambda kill: self.on_kill(plan, kill),
        )
        outcome = endured(number, ordeal)
        if not outcome.violations:
            shutil.rmtree(folder)
        return outcome


def endured(number: int, ordeal: Ordeal) -> Outcome:
    """Run a study to its end and judge it."""
    start = time.monotonic()
    num_epochs, replays = 0, []
    try:
        evidence = _evidence(ordeal, ordeal.run())
    except (Hung, _Unreadable) as error:
        found = [str(error)]
    else:
        found = violations(evidence)
        num_epochs = len(evidence.epochs)
        replays = [len(times) for times in replayed(evidence.epochs, evidence.audit.trained)]
    return Outcome(
        number=number,
        plan=ordeal.plan,
        kills=tuple(ordeal.kills),
        num_epochs=num_epochs,
        replays=tuple(replays),
        violations=tuple(found),
        wall_s=time.monotonic() - start,
        output_dir=ordeal.output_dir,
    )


def _evidence(ordeal: Ordeal, exit_code: int) -> Evidence:
    try:
        return gather(ordeal.plan, ordeal.output_dir, exit_code, ordeal.leftovers)
    except (OSError, ValueError, KeyError) as error:
        raise _Unreadable(f"what it left cannot be read: {error!r}") from error


class _Unreadable(Exception):
    """The evidence is not what it should be."""
