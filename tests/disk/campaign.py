"""State after state, drawn from a seed: put on a disk, restarted, checked."""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tests.disk.model import History, Synced, Told, Tree
from tests.disk.recording import recorded
from tests.disk.scenarios import SCENARIOS, Scenario
from tests.disk.scratch import Scratch, scratch, taken
from tests.disk.states import Moment

AT_A_CHANGE = 0.7
AGAIN = 0.4
MOST_CUTS = 3
NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """Case `number` of a seed: the power failed after so many steps, and then what must hold did not."""

    number: int
    scenario: str
    cuts: Sequence[int]
    losses: Sequence[str]
    text: str


@dataclass(kw_only=True, slots=True)
class Counts:
    """What was tried: states by scenario and by what was lost. In `num_again` the restart after another one was cut."""

    scenarios: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    num_again: int = 0
    num_cases: int = 0
    violations: list[Violation] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def num_states(self) -> int:
        return self.scenarios.total()


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """`num_states` states of all scenarios in turn, drawn from `seed`; the first case is number `first`.

    With `unheard` "files" or "folders" nothing that the program does to sync them has an effect, which must be found
    out: the campaign ends at its first violation then. `on_case` is told of each case.
    """

    num_states: int
    seed: int
    first: int = 0
    scenarios: Sequence[Scenario] = SCENARIOS
    unheard: Collection[str] = ()
    on_case: Callable[[Counts], None] = lambda counts: None

    def run(self, counts: Counts) -> Counts:
        """Run it; whatever ends it, `counts` has what was found by then."""
        start = time.monotonic()
        with _quiet(), scratch() as ground:
            runs = [Run(scenario, ground, self.unheard) for scenario in self.scenarios]
            while counts.num_states < self.num_states and not (self.unheard and counts.violations):
                number = self.first + counts.num_cases
                runs[number % len(runs)].case(number, Random(f"{self.seed}/{number}"), ground, counts)
                counts.num_cases += 1
                counts.wall_s = time.monotonic() - start
                self.on_case(counts)
        return counts


class Run:
    """A scenario that ran once, with every step that it took."""

    def __init__(self, scenario: Scenario, ground: Scratch, unheard: Collection[str] = ()) -> None:
        self.scenario = scenario
        self.unheard = unheard
        self.folder = ground.put({})
        self.told = list(scenario.prepare(self.folder))
        with recorded(self.folder, taken(self.folder), unheard=unheard) as self.history:
            scenario.run(self.folder, self.told, self.history.tell)

    def case(self, number: int, random: Random, ground: Scratch, counts: Counts) -> None:
        """Let the power fail, and perhaps again while the restart after that goes on."""
        history, told = self.history, self.told
        cuts: list[int] = []
        losses: list[str] = []
        while not cuts or (len(cuts) < MOST_CUTS and random.random() < AGAIN):
            cuts.append(_cut(history, random))
            state = Moment(history, cuts[-1]).drawn(random)
            told = [*told, *history.facts(cuts[-1])]
            losses += sorted(state.losses)
            counts.scenarios[self.scenario.name] += 1
            counts.losses.update(state.losses or {NOTHING})
            counts.num_again += len(cuts) > 1
            history, problem = self._restarted(state.tree, told, ground)
            if problem:
                counts.violations.append(
                    Violation(number=number, scenario=self.scenario.name, cuts=cuts, losses=losses, text=problem)
                )
                break

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
