"""What the sweeps have in common: cases that are run one after the other, counted and judged."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One case: its name, the line and column of the table in which it counts, what came of it, and what was violated.

    One that `counts` not has not come about, and shows nothing.
    """

    name: str
    row: tuple[str, str]
    outcome: str
    violations: tuple[str, ...]
    counts: bool = True


IN_MEMORY = Path("/dev/shm")

Case = Callable[[], Result]


class Sweep(Protocol):
    """A kind of campaign.

    `figure` is its name among the figures, `num_cases` how many cases it runs unless told otherwise, 0 for all.
    """

    figure: str
    num_cases: int

    def planned(self, folder: Path, *, seed: int, num: int, only: str) -> AbstractContextManager[Sequence[Case]]:
        """The cases of a seed, `num` or somewhat more, whose name begins with `only`, to be run below a folder."""
        ...


@dataclass(kw_only=True, slots=True)
class Tally:
    """The results so far."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    num_cases: int = 0
    num_idle: int = 0
    violations: list[Result] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, result: Result) -> None:
        """Count a result."""
        self.num_cases += result.counts
        self.num_idle += not result.counts
        self.rows[result.row] += result.counts
        self.outcomes[result.outcome] += 1
        if result.violations:
            self.violations.append(result)

    def figures(self) -> dict[str, int]:
        """All cases, those of each line and of each column of the table, and what came of them."""
        sums: Counter[str] = Counter()
        for names, num in self.rows.items():
            sums.update(dict.fromkeys(names, num))
        return {"all": self.num_cases, **sums, **{f"came of it: {name}": num for name, num in self.outcomes.items()}}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone with the block; in memory if the machine has a place for that."""
    is_there = os.access(IN_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="sst-sweep-", dir=IN_MEMORY if is_there else None) as folder:
        yield Path(folder)


def run(cases: Sequence[Case], tally: Tally, on_result: Callable[[Result], None] = lambda _: None) -> None:
    """Run the cases, and add their results to `tally`."""
    began = time.monotonic()
    try:
        for case in cases:
            result = case()
            tally.add(result)
            on_result(result)
    finally:
        tally.wall_s += time.monotonic() - began
