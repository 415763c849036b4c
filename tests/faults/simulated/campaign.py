"""Whole studies run on a simulated machine, whose faults a seed decides."""

from collections.abc import Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

from tests.campaigns import Campaign, Round, Tally, option
from tests.faults.simulated.drawing import drawn
from tests.faults.simulated.judge import Outcome, judged
from tests.faults.simulated.minimise import fails_like, minimised
from tests.faults.simulated.planted import PLANTED
from tests.faults.simulated.seeds import of_line, to_line

SHOWN = 3000


@dataclass(frozen=True, kw_only=True)
class SimulatedSchedules(Campaign):
    """Schedules of threads, network and deaths, each of which follows from the seed and its number."""

    figure: ClassVar[str] = "simulated schedules"

    schedules: int = option(500, "how many")
    first: int = option(0, "begin with schedule N of the seed")
    line: str = option("", "run the one schedule of this line of seeds.txt", metavar="JSON")
    planted: str = option(None, "put this bug into the product, to see it found", choices=sorted(PLANTED))
    whole: bool = option(False, "do not make schedules that fail smaller")

    @property
    def total(self) -> int:
        return 1 if self.line else self.schedules

    def figures(self, tally: Tally) -> Mapping[str, Mapping[str, int]]:
        # Two entries, since the cases of one are added up. That simulations send some steps twice is no fault.
        faults = {what: num for (what, _), num in sorted(tally.table.items()) if what != "duplicate"}
        return {} if self.planted else {self.figure: tally.cases, "faults in simulated schedules": faults}

    def run(self) -> Generator[Round, None, None]:
        with PLANTED[self.planted]() if self.planted else nullcontext():
            if self.line:
                yield round_of(judged(of_line(self.line)), is_whole=True)
            else:
                for number in range(self.first, self.first + self.schedules):
                    yield round_of(judged(drawn(self.seed, number), number), is_whole=self.whole)


def round_of(outcome: Outcome, *, is_whole: bool = True) -> Round:
    """The events of the study, and, unless `is_whole`, the smallest schedule that fails alike."""
    end, again = outcome.end, f"--first {outcome.number} --schedules 1"
    if outcome.violations and not is_whole:
        smallest = minimised(end.plan, fails=fails_like(outcome.violations[0]))
        again += f", or, the smallest that fails alike, for seeds.txt: --line '{to_line(smallest)}'"
    return Round(
        cases={end.plan.policy if end.plan.window is None else "windows": 1},
        table={(what, "times"): num for what, num in end.happened.items()},
        totals={
            "with static fields": int(end.plan.statics),
            "with fields that differ in size": int(end.plan.ragged),
            "with windows on several ranks": int(end.plan.window is not None and end.plan.num_ranks > 1),
            "with workers": int(end.plan.per_worker > 1),
            "steered": int(end.plan.is_steered),
            "restarts of the server": max(0, len(end.incarnations) - 1),
            "attempts of simulations": end.num_attempts,
            "messages": end.num_messages,
            "switches of threads": end.num_switches,
            "virtual hours": end.virtual_s / 3600,
        },
        violations=[violation[:SHOWN] for violation in outcome.violations],
        text=f"schedule {outcome.number}: {'; '.join(map(str, end.plan.faults))}" if outcome.violations else "",
        again=again,
    )
