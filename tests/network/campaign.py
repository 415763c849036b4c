"""Round after round with networks that break, all drawn from one seed."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.network import draws
from tests.network.ordeal import endure
from tests.network.partitions import endure_partition
from tests.network.studies import Journey, travel

# A round is a study in this process; every so many of them, another kind takes its place.
STUDY_EVERY, PARTITION_EVERY = 20, 50
LONGEST_CUT_S = 12.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One round: on how many connections which faults were felt, and a sentence for each violation."""

    number: int
    kind: str
    struck: Counter[str]
    num_connections: int
    violations: tuple[str, ...]
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """`num_rounds` rounds of `seed`, from number `first` on; `folder` is for whole studies.

    `partitions`: whether some rounds are studies on two nodes. Each round is told to `on_result`.
    """

    num_rounds: int
    seed: int
    folder: Path
    first: int = 0
    partitions: bool = False
    on_result: Callable[[Result], None] = lambda result: None

    def run(self) -> Iterator[Result]:
        """One round after the other."""
        for number in range(self.first, self.first + self.num_rounds):
            result = self._round(number)
            self.on_result(result)
            yield result

    def _round(self, number: int) -> Result:
        seed = f"{self.seed}/{number}"
        if self.partitions and number % PARTITION_EVERY == PARTITION_EVERY - 1:
            return self._partition(number, seed)
        if number % STUDY_EVERY == STUDY_EVERY - 1:
            return self._study(number, seed)
        outcome = endure(draws.ordeal(seed))
        return Result(
            number=number,
            kind="receivers",
            struck=outcome.struck,
            num_connections=outcome.num_connections,
            violations=outcome.violations,
            wall_s=outcome.wall_s,
        )

    def _study(self, number: int, seed: str) -> Result:
        folder = self._folder(number)
        arrival = travel(Journey.drawn(seed), folder)
        if not arrival.violations:
            shutil.rmtree(folder)
        return Result(
            number=number,
            kind="study",
            struck=arrival.struck,
            num_connections=arrival.num_connections,
            violations=arrival.violations,
            wall_s=arrival.wall_s,
        )

    def _partition(self, number: int, seed: str) -> Result:
        start, folder = time.monotonic(), self._folder(number)
        found = endure_partition(seed, random.Random(seed).uniform(1, LONGEST_CUT_S), folder)
        if not found:
            shutil.rmtree(folder)
        return Result(
            number=number,
            kind="partition",
            struck=Counter({"Partition": 1}),
            num_connections=0,
            violations=tuple(found),
            wall_s=time.monotonic() - start,
        )

    def _folder(self, number: int) -> Path:
        folder = self.folder / f"round-{number}"
        folder.mkdir()
        return folder
