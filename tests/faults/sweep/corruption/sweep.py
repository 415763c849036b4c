"""Damages copies of stores, one after the other, and reads them."""

import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.faults.sweep.corruption.damages import Damage, Damages
from tests.faults.sweep.corruption.stores import STORES
from tests.faults.sweep.corruption.stores.store import Store, Verdict

DEADLINE_S = 20.0
EQUAL = "the same bytes: no damage"


class Hangs(BaseException):
    """A read has not come back; no error that anything catches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a damage: `verdict` in words, and what is wrong with that, "" for nothing."""

    damage: Damage
    verdict: str
    violation: str


class Bench:
    """Makes the stores of two studies below a folder, and damages copies of those of the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for store in STORES.values():
            for study in (0, 1):
                store.make(self._of_study(store, study), study)

    def damages(self, num: int, generator: random.Random) -> list[Damage]:
        """About so many damages, dealt to all stores by their number of files."""
        files = {name: len(store.files(self._of_study(store, 0))) for name, store in STORES.items()}
        weights = {name: max(2, count) for name, count in files.items()}
        found: list[Damage] = []
        for name, store in STORES.items():
            share = num * weights[name] // sum(weights.values())
            found += Damages(store, self._of_study(store, 0), self._of_study(store, 1)).sample(share, generator)
        return found

    def run(self, damage: Damage) -> Outcome:
        """Do the damage to a copy, and read it."""
        store, copy = STORES[damage.store], self._folder / "copy"
        shutil.copytree(self._of_study(store, 0), copy)
        try:
            damage.do(copy)
            is_equal = _is_equal(self._of_study(store, 0), copy, damage.file)
            with _deadline():
                verdict = store.read(copy)
            mixed = verdict is Verdict.OLDER and not _is_equal(self._of_study(store, 0), copy, store.older)
        except Hangs:
            return Outcome(damage=damage, verdict="hangs", violation=f"it is still read after {DEADLINE_S:.0f} s")
        except Exception as error:
            return Outcome(damage=damage, verdict="believed", violation=f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(copy)
        if mixed:
            return Outcome(damage=damage, verdict=verdict.value, violation="the older one is not as it was written")
        return self._judged(damage, store, verdict, is_equal=is_equal)

    def _judged(self, damage: Damage, store: Store, verdict: Verdict, *, is_equal: bool) -> Outcome:
        ends_anywhere = any(Path(damage.file).match(pattern) for pattern in store.ends_anywhere)
        violation = ""
        # What is behind the end of a log does not count, and its reader has compared all that does.
        if verdict is Verdict.WHOLE and not is_equal and not ends_anywhere:
            violation = "it is taken for good"
        if verdict is Verdict.SHORTER and not ends_anywhere:
            violation = "a part of it is missing, and the rest is taken for good"
        return Outcome(damage=damage, verdict=EQUAL if is_equal else verdict.value, violation=violation)

    def _of_study(self, store: Store, study: int) -> Path:
        return self._folder / f"study-{study}" / store.name


def _is_equal(original: Path, copy: Path, file: str) -> bool:
    """Whether who follows the paths finds the same bytes."""
    before, after = original / file, copy / file
    if before.is_dir():
        paths = [path.relative_to(before) for path in before.rglob("*") if path.is_file()]
        return all(_is_equal(before, after, path.as_posix()) for path in paths)
    return after.is_file() and after.read_bytes() == before.read_bytes()


@contextmanager
def _deadline() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
