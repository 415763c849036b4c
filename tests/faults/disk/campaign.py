"""The power fails at any moment, and a restart must find what was promised."""

import logging
import traceback
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from tests.campaigns import Campaign, Round, option
from tests.faults.disk.model import History, Synced, Told, Tree
from tests.faults.disk.recording import recorded
from tests.faults.disk.scenarios import SCENARIOS, Scenario
from tests.faults.disk.scratch import Scratch, scratch, taken
from tests.faults.disk.states import Moment

AT_A_CHANGE = 0.7
AGAIN = 0.4
MOST_CUTS = 3
NOTHING = "nothing"
CUT_AGAIN = "restarts cut short"


@dataclass(frozen=True, kw_only=True)
class PowerFailures(Campaign):
    """`states` states of the disk, of all scenarios in turn.

    With `unheard` "files" or "folders" nothing that the program does to sync them has an effect, which must be found
    out: the campaign ends at its first violation then.
    """

    figure: ClassVar[str] = "disk states"

    states: int = option(2000, "how many states of the disk are restarted")
    first: int = option(0, "begin with case N of the seed")
    scenarios: Sequence[Scenario] = SCENARIOS
    unheard: Collection[str] = ()

    @property
    def total(self) -> int:
        return self.states

    def run(self) -> Generator[Round, None, None]:
        num_states, number = 0, self.first
        with _quiet(), scratch() as ground:
            runs = [Run(scenario, ground, self.unheard) for scenario in self.scenarios]
            while num_states < self.states:
                case = runs[number % len(runs)].case(number, Random(f"{self.seed}/{number}"), ground)
                num_states += case.size
                number += 1
                yield case
                if self.unheard and case.violations:
                    return


class Run:
    """A scenario that ran once, with every step that it took."""

    def __init__(self, scenario: Scenario, ground: Scratch, unheard: Collection[str] = ()) -> None:
        self.scenario = scenario
        self.unheard = unheard
        self.folder = ground.put({})
        self.told = list(scenario.prepare(self.folder))
        with recorded(self.folder, taken(self.folder), unheard=unheard) as self.history:
            scenario.run(self.folder, self.told, self.history.tell)

    def case(self, number: int, random: Random, ground: Scratch) -> Round:
        """Let the power fail, and perhaps again while the restart after that goes on."""
        history, told = self.history, self.told
        cuts: list[int] = []
        lost: list[Collection[str]] = []
        problem = ""
        while not cuts or (not problem and len(cuts) < MOST_CUTS and random.random() < AGAIN):
            cuts.append(_cut(history, random))
            state = Moment(history, cuts[-1]).drawn(random)
            told = [*told, *history.facts(cuts[-1])]
            lost.append(sorted(state.losses) or [NOTHING])
            history, problem = self._restarted(state.tree, told, ground)
        moments = (f"after step {cut} ({', '.join(names)} lost)" for cut, names in zip(cuts, lost, strict=True))
        name, num = self.scenario.name, len(cuts)
        return Round(
            cases={name: num},
            table={(name, "states"): num, (name, CUT_AGAIN): num - 1},
            totals=Counter(f"with loss of {it}" for names in lost for it in names),
            violations=[f"{name}: the power failed {', then '.join(moments)}\n{problem}"] if problem else [],
            again=f"--first {number} --states 1",
            size=num,
        )

    def _restarted(self, tree: Tree, told: Sequence[object], ground: Scratch) -> tuple[History, str]:
        """The steps of a restart on a disk, and what is wrong."""
        folder = ground.put(tree)
        with recorded(folder, tree, unheard=self.unheard) as history:
            try:
                self.scenario.recover(folder, told, history.tell)
            except Exception:
                return history, traceback.format_exc(limit=-3)
        return history, ""


def _cut(history: History, random: Random) -> int:
    """After how many steps the power fails: mostly right after one that is not synced yet."""
    changes = [place for place, step in enumerate(history.steps, start=1) if not isinstance(step, Synced | Told)]
    if changes and random.random() < AT_A_CHANGE:
        return random.choice(changes)
    return random.randint(0, len(history.steps))


@contextmanager
def _quiet() -> Iterator[None]:
    """The product warns of all that it finds; here it always finds something."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
