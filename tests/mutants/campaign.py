"""Small changes to the code, a sample from each room: the tests must notice each that breaks a promise.

Why: docs/decisions/0095-mutants.md
"""

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from tests.campaigns import Campaign, Round, Tally, option
from tests.mutants import scores
from tests.mutants.mutations import Mutant, mutants
from tests.mutants.trial import BASELINE_S, NoBaseline, Workshop
from tests.test_imports import MODULES, ROOMS, room_of

# The modules that belong to no room.
TOP = "package"
# The catalogue of failpoints, and plain words: there is nothing in them that could be wrong by a little.
LEFT_OUT = {"failpoints"}


@dataclass(frozen=True, kw_only=True)
class MutantCampaign(Campaign):
    """One mutant after the other, with its fate: its room, and the kind of what came of it."""

    figure: ClassVar[str] = scores.FIGURE

    names: Sequence[str] = option((), "only mutants whose names have one of these in them", nargs="*", metavar="TEXT")
    again: bool = option(False, "only those that survived, and mattered, in the recorded run")
    more: bool = option(False, "add to what is recorded of a room, by another seed, instead of replacing it")
    fates: dict[str, tuple[str, str]] = field(default_factory=dict)

    def record(self, tally: Tally, wall_s: float) -> None:
        scores.record(self.fates, wall_s=wall_s, seed=self.seed, again=self.again, more=self.more)

    def judged(self, mutant: Mutant, how: str, reasons: Mapping[str, str]) -> Round:
        """The round of a mutant that is noticed `how`, "" if it is not."""
        reason = "" if scores.test_of(mutant, reasons) else reasons.get(mutant.name, "")
        kind = scores.CAUGHT if how else scores.UNPROMISED if reason else scores.MATTERS
        self.fates[mutant.name] = mutant.room, kind
        where = f"{mutant.name} (line {mutant.line})"
        return Round(
            cases={kind: 1},
            table={(mutant.room, it): int(it == kind) for it in scores.KINDS},
            violations=[f"SURVIVES: {where}"] if kind == scores.MATTERS else [],
            text=f"{where}: {how or reason}",
            again=f"--only {mutant.room}",
        )


@dataclass(frozen=True, kw_only=True)
class Mutants(MutantCampaign):
    """One mutant of Python after the other in a copy of the project, where the tests of its module run."""

    only: str = option("", "only these rooms, divided by commas; a room that ends with a dot means those in it")
    modules: str = option("", "only modules of these names, which are without their rooms and divided by commas")
    number: int = option(16, "how many mutants of each room")
    tests: str = option("", "try these tests alone, divided by commas, instead of finding those that run the line")

    def __post_init__(self) -> None:
        if unknown := [it for it in self._only if not any(_is_in(room, it) for room in all_rooms())]:
            raise ValueError(f"there is no room {unknown[0]}, only {', '.join(all_rooms())}")

    @property
    def _only(self) -> list[str]:
        return [it for it in self.only.split(",") if it]

    @property
    def rooms(self) -> list[str]:
        return [it for it in all_rooms() if not self._only or any(_is_in(it, only) for only in self._only)]

    @property
    def total(self) -> int:
        return sum(len(self.sample(room)) for room in self.rooms)

    def sample(self, room: str) -> list[tuple[str, Mutant]]:
        """The mutants of a room that the seed draws, with their modules; all of those that are asked for."""
        modules = [it for it in self.modules.split(",") if it]
        found = [it for it in mutants_of(room) if not modules or it[0].rpartition(".")[2] in modules]
        if self.again:
            open_ones = scores.open_ones(room)
            return [it for it in found if it[1].name in open_ones]
        if self.names:
            return [it for it in found if any(name in it[1].name for name in self.names)]
        drawn = random.Random(f"{self.seed}/{room}").sample(range(len(found)), min(self.number, len(found)))
        return [found[number] for number in sorted(drawn)]

    def run(self) -> Generator[Round, None, None]:
        reasons = scores.reasons()
        with Workshop(self.folder) as workshop:
            for room in self.rooms:
                for module, mutant in self.sample(room):
                    elsewhere = scores.test_of(mutant, reasons)
                    try:
                        if self.again and mutant.name in reasons and not elsewhere:
                            # The recorded run has seen it survive.
                            how = ""
                        elif self.tests:
                            how = workshop.notices(mutant, self.tests.split(","), BASELINE_S)
                        else:
                            how = workshop.catches(mutant, module, elsewhere=elsewhere)
                    except NoBaseline as error:
                        yield Round(violations=[f"without any mutant: {error}"])
                        continue
                    yield self.judged(mutant, how, reasons)


def all_rooms() -> list[str]:
    """The rooms that have modules, and `TOP`."""
    return [TOP, *(room for room in ROOMS if any(_modules(room)))]


def _is_in(room: str, name: str) -> bool:
    return room.startswith(name) if name.endswith(".") else room == name


def _modules(room: str) -> list[str]:
    own = "" if room == TOP else room
    return [it for it in MODULES if it and it not in ROOMS and room_of(it) == own and it not in LEFT_OUT]


@cache
def mutants_of(room: str) -> list[tuple[str, Mutant]]:
    """Every mutant of a room, with its module."""
    return [(name, it) for name in _modules(room) for it in mutants(MODULES[name], room=room, module=name)]
