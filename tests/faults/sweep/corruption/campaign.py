"""Files that a restart reads are damaged in every way, and each damage must be noticed."""

import logging
import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from tests.campaigns import Campaign, Round, option
from tests.faults.sweep.campaign import case, scratch
from tests.faults.sweep.corruption.damages import Damage
from tests.faults.sweep.corruption.sweep import EQUAL, Bench


@dataclass(frozen=True, kw_only=True)
class DamagedFiles(Campaign):
    """About `cases` damages of all kinds to everything that is read after a restart."""

    figure: ClassVar[str] = "corruption"

    cases: int = option(6000, "how many cases, about")
    only: str = option("", "those alone whose name begins so", metavar="NAME")

    def run(self) -> Generator[Round, None, None]:
        with scratch() as folder, _in_silence():
            bench = Bench(folder)
            for damage in bench.damages(self.cases, random.Random(self.seed)):
                if str(damage).startswith(self.only):
                    yield _result(bench, damage)


def _result(bench: Bench, damage: Damage) -> Round:
    outcome = bench.run(damage)
    violations = [outcome.violation] if outcome.violation else []
    counts = outcome.verdict != EQUAL
    return case(str(damage), damage.kind, damage.store, outcome.verdict, violations, counts=counts)


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep the product's messages about each damage off the screen; they are checked where the damage is read."""
    logger = logging.getLogger("stream_server")
    said, logger.propagate = logger.propagate, False
    logger.addHandler(silent := logging.NullHandler())
    try:
        yield
    finally:
        logger.propagate = said
        logger.removeHandler(silent)
