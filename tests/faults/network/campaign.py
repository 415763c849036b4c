"""Studies run over networks that break in every way."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from tests.campaigns import Campaign, Round, option
from tests.faults.network import draws
from tests.faults.network.ordeal import endure
from tests.faults.network.partitions import endure_partition
from tests.faults.network.studies import Journey, travel
from tests.needs import lacking

# A round is a study in this process; every so many of them, another kind takes its place.
STUDY_EVERY, PARTITION_EVERY = 20, 50
LONGEST_CUT_S = 12.0


@dataclass(frozen=True, kw_only=True)
class BrokenNetworks(Campaign):
    """Receivers in this process, whole studies, and, where there can be another node, studies on two nodes."""

    figure: ClassVar[str] = "network"

    rounds: int = option(200, "how many networks are drawn")
    first: int = option(0, "begin with round N of the seed")

    @property
    def total(self) -> int:
        return self.rounds

    def run(self) -> Generator[Round, None, None]:
        why_not = ", ".join(lacking("another node"))
        if why_not:
            yield Round(text=f"no partitions: there can be no other node here ({why_not})", size=0)
        for number in range(self.first, self.first + self.rounds):
            yield self._round(number, has_partitions=not why_not)

    def _round(self, number: int, *, has_partitions: bool) -> Round:
        seed, folder, started = f"{self.seed}/{number}", self.folder / f"round-{number}", time.monotonic()
        folder.mkdir()
        if has_partitions and number % PARTITION_EVERY == PARTITION_EVERY - 1:
            kind, struck, num_connections = "partition", Counter(Partition=1), 0
            violations = endure_partition(seed, random.Random(seed).uniform(1, LONGEST_CUT_S), folder)
        else:
            is_study = number % STUDY_EVERY == STUDY_EVERY - 1
            kind = "study" if is_study else "receivers"
            outcome = travel(Journey.drawn(seed), folder) if is_study else endure(draws.ordeal(seed))
            struck, num_connections, violations = outcome.struck, outcome.num_connections, outcome.violations
        if not violations:
            shutil.rmtree(folder)
        told = ", ".join(f"{num} {fault}" for fault, num in struck.most_common()) or "nothing"
        return Round(
            cases={"rounds": 1, "all": num_connections, **struck},
            table={(fault, kind): num for fault, num in struck.items()},
            totals={"connections through the proxies": num_connections},
            violations=violations,
            text=f"round {number} ({kind}): {told} on {num_connections}; {time.monotonic() - started:.1f} s",
            again=f"--first {number} --rounds 1",
        )
