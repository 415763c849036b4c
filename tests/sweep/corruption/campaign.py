"""The sweep of damages."""

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.sweep.campaign import Case, Result
from tests.sweep.corruption.damages import Damage
from tests.sweep.corruption.sweep import EQUAL, Bench


@dataclass(frozen=True, slots=True)
class CorruptionSweep:
    """Damages of all kinds to everything that is read after a restart."""

    figure: str = "corruption"
    num_cases: int = 6000

    @contextmanager
    def planned(self, folder: Path, *, seed: int, num: int, only: str) -> Iterator[Sequence[Case]]:
        """About `num` damages."""
        bench = Bench(folder)
        with _in_silence():
            damages = bench.damages(num, random.Random(seed))
            yield [partial(_result, bench, damage) for damage in damages if str(damage).startswith(only)]


def _result(bench: Bench, damage: Damage) -> Result:
    outcome = bench.run(damage)
    return Result(
        name=str(damage),
        row=(damage.kind, damage.store),
        outcome=outcome.verdict,
        violations=(outcome.violation,) if outcome.violation else (),
        counts=outcome.verdict != EQUAL,
    )


@contextmanager
def _in_silence() -> Iterator[None]:
    """What the product says of each damage is looked at where it is read, and would fill the screen."""
    logger = logging.getLogger("stream_server")
    said, logger.propagate = logger.propagate, False
    logger.addHandler(silent := logging.NullHandler())
    try:
        yield
    finally:
        logger.propagate = said
        logger.removeHandler(silent)
