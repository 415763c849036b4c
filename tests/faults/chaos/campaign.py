"""Random processes of studies are killed while they run."""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from tests.campaigns import Campaign, Round, Tally, option
from tests.faults.chaos.evidence import gather
from tests.faults.chaos.invariants import Evidence, violations
from tests.faults.chaos.kills import Kill
from tests.faults.chaos.ordeal import Hung, Ordeal
from tests.faults.chaos.plan import LEARNERS, Plan
from tests.faults.chaos.timeline import replayed

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
    num_incarnations: int
    replays: Sequence[int]
    violations: Sequence[str]
    wall_s: float
    output_dir: Path


@dataclass(frozen=True, kw_only=True)
class Chaos(Campaign):
    """Study after study under fire, until `kills` processes have been killed. One that nothing befell counts, too."""

    figure: ClassVar[str] = "chaos: kills"

    kills: int = option(50, "how many processes are killed")
    first: int = option(0, "begin with study N of the seed")
    ranks: int = option(2, "ranks of the server")
    learner: str = option("number", "what the server trains", choices=tuple(LEARNERS))
    mpi: str = option("mpich", "the MPI of the server", choices=("mpich", "openmpi"))
    stops: bool = option(False, "stop some processes (SIGSTOP) instead of killing them")

    @property
    def total(self) -> int:
        return self.kills

    def figures(self, tally: Tally) -> Mapping[str, Mapping[str, int]]:
        of = "" if self.learner == "number" else f" of studies that train {self.learner}"
        return {f"{self.figure}{of}": tally.cases}

    def run(self) -> Generator[Round, None, None]:
        num_killed, number = 0, self.first
        while num_killed < self.kills:
            outcome = self._study(number, self.kills - num_killed)
            num_killed += len(outcome.kills)
            number += 1
            yield round_of(outcome)

    def _study(self, number: int, most: int) -> Outcome:
        plan = Plan.drawn(self.seed, number, num_ranks=self.ranks, learner=self.learner)
        folder = self.folder / f"study-{number}"
        folder.mkdir()
        ordeal = Ordeal(
            plan=plan,
            output_dir=folder / "run",
            max_kills=min(most, random.Random(f"{plan.seed}/kills").randint(MIN_KILLS, MAX_KILLS)),
            mpi=self.mpi,
            stops=self.stops,
            calm_s=CALM_S + (STOP_S if self.stops else 0),
        )
        outcome = endured(number, ordeal)
        if not outcome.violations:
            shutil.rmtree(folder)
        return outcome


def round_of(outcome: Outcome) -> Round:
    """Kills by kind of process and by what the study was doing."""
    table = Counter[tuple[str, str]]()
    for kill in outcome.kills:
        columns = ("all", *(["stopped"] if kill.number == signal.SIGSTOP else []), kill.moment)
        table.update((kill.kind, column) for column in columns)
    cases = Counter(f"{kill.kind}s" for kill in outcome.kills)
    told = ", ".join(f"{num} {kind}" for kind, num in cases.most_common()) or "nothing"
    story = "; ".join(
        f"{datetime.fromtimestamp(kill.time, UTC):%H:%M:%S} {kill.number.name} {kill.name} {kill.pid} in {kill.moment}"
        for kill in outcome.kills
    )
    return Round(
        cases=cases,
        table=table,
        totals={"restarts of the server": max(outcome.num_incarnations - 1, 0), "batches redone": sum(outcome.replays)},
        violations=outcome.violations,
        text=f"study {outcome.number} ({outcome.plan.policy}, {outcome.plan.num_ranks} ranks): killed {told}; "
        f"{outcome.num_incarnations} incarnations, {outcome.wall_s:.0f} s",
        again=f"--first {outcome.number} --kills {len(outcome.kills)} ({story})",
        size=len(outcome.kills),
    )


def endured(number: int, ordeal: Ordeal) -> Outcome:
    """Run a study to its end and judge it."""
    start = time.monotonic()
    num_incarnations, replays = 0, []
    try:
        evidence = _evidence(ordeal, ordeal.run())
    except (Hung, _Unreadable) as error:
        found = [str(error)]
    else:
        found = violations(evidence)
        num_incarnations = len(evidence.incarnations)
        replays = [len(times) for times in replayed(evidence.incarnations, evidence.audit.trained)]
    return Outcome(
        number=number,
        plan=ordeal.plan,
        kills=tuple(ordeal.kills),
        num_incarnations=num_incarnations,
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
