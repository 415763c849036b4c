"""The best models: each is there completely or not at all, and there while it is among them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.server.model.best_models import BestFolder, read_facts
from tests.faults.disk.scenarios.scenario import Tell
from tests.support.checkpoint_stores import part

FOLDER = "run/best"
PATHS = ("model/model.state", "model/user.state", "normalization.state")


@dataclass(frozen=True, slots=True)
class Leaving:
    """The model of this batch is about to be removed, or replaced."""

    batch: int


@dataclass(frozen=True, slots=True)
class Kept:
    """It is among the best."""

    batch: int


@dataclass(frozen=True, slots=True)
class BestModels:
    """Models come and go."""

    name: str = "best models"

    def prepare(self, folder: Path) -> Sequence[object]:
        (folder / "run").mkdir(parents=True)
        return []

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        best = BestFolder(folder / FOLDER)
        keep(best, 10, tell)
        keep(best, 20, tell)
        leave(best, 10, [20], tell)
        keep(best, 20, tell)
        keep(best, 30, tell)
        leave(best, 20, [30], tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        best = BestFolder(folder / FOLDER)
        kept = _kept(told)
        for batch in there(best):
            check(best, batch)
        assert kept <= there(best), f"{kept} were kept, {there(best)} are there"
        for batch in there(best) - kept:
            tell(Leaving(batch))
        best.keep_only(kept)
        keep(best, 40, tell)
        assert there(best) == kept | {40}
        check(best, 40)
        leave(best, 40, kept, tell)
        assert {path.name for path in best.folder.iterdir()} == {best.path(batch).name for batch in kept}


def keep(best: BestFolder, batch: int, tell: Tell) -> None:
    """Write the model of a batch; one that is there already is gone for a moment."""
    tell(Leaving(batch))
    best.write(batch, [part(path, _bytes(path, batch)) for path in PATHS], {"batch": batch})
    tell(Kept(batch))


def leave(best: BestFolder, batch: int, others: Sequence[int] | set[int], tell: Tell) -> None:
    """Remove the model of a batch."""
    tell(Leaving(batch))
    best.keep_only(others)


def there(best: BestFolder) -> set[int]:
    """The batches of which there is a model, by name."""
    names = [path.name for path in best.folder.iterdir()] if best.folder.exists() else []
    return {int(name.removeprefix("batch-")) for name in names if re.fullmatch(r"batch-\d{6,}", name)}


def check(best: BestFolder, batch: int) -> None:
    """A model that has its name is all there."""
    folder = best.path(batch)
    assert read_facts(folder)["batch"] == batch
    assert {path: (folder / path).read_bytes() for path in PATHS} == {path: _bytes(path, batch) for path in PATHS}


def _kept(told: Sequence[object]) -> set[int]:
    kept: set[int] = set()
    for fact in told:
        match fact:
            case Kept(batch=batch):
                kept.add(batch)
            case Leaving(batch=batch):
                kept.discard(batch)
    return kept


def _bytes(path: str, batch: int) -> bytes:
    return f"{path} after {batch} ".encode() * 40
