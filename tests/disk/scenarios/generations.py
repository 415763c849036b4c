"""Checkpoints: a restart continues the newest generation that was committed, or the one that was being committed."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.server.checkpoint.checksum_file import ChecksumFile
from stream_server.server.checkpoint.epochs import read_epochs
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.manifest import Manifest
from stream_server.server.checkpoint.part import Part, Saved
from stream_server.server.checkpoint.saver import Committed, Failed, Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks import SoloRanks
from tests.disk.scenarios.scenario import Tell
from tests.server.checkpoint.stores import manifest_of, names, part, read, settle, start

STORE = "run/checkpoints"


@dataclass(frozen=True, slots=True)
class Starting:
    """This epoch is about to begin."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Started:
    """It has begun."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Saving:
    """This generation is about to be committed."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Good:
    """It is what a restart continues; number 0 is the beginning of the study."""

    number: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointing:
    """Generations are written; `before` makes those that were there, and gives the good one, `during` goes on."""

    name: str
    before: Callable[[Path], Good]
    during: Callable[[Path, Sequence[object], Tell], None]

    def prepare(self, folder: Path) -> Sequence[object]:
        good = self.before(folder / STORE)
        return [Started(read_epochs(folder / STORE).newest), good]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        self.during(folder / STORE, told, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        recover(folder / STORE, told, tell)


class Telling(Generations):
    """Says when a generation is committed, before older ones are removed."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        super().__init__(folder)
        self._tell = tell

    def commit(self, number: int, manifest: Manifest) -> Path:
        self._tell(Saving(number, manifest.epoch))
        path = super().commit(number, manifest)
        self._tell(Good(number, manifest.epoch))
        return path


def content(number: int, epoch: int) -> dict[str, bytes]:
    """The files of a generation, no two of which are alike; the last one is empty."""
    paths = ("study.state", "model/model.state", "rank-0/samples.rows")
    files = {path: f"{path} of {number} by {epoch} ".encode() * (12 + 20 * place) for place, path in enumerate(paths)}
    return {**files, "rank-0/rank.state": b""}


def save(store: Path, number: int, epoch: int, tell: Tell = lambda fact: None, *, fails: bool = False) -> None:
    """Write and commit a generation; one that `fails` does so after some of its files, and is given up."""
    parts = [part(path, data) for path, data in content(number, epoch).items()]
    if fails:
        parts.insert(2, Part(path="rank-0/broken", write=_fail))
    with Saver(Telling(store, tell), epoch=epoch, rank=0) as saver:
        saver.begin(number, parts)
        outcome = settle(saver)
        if fails:
            assert isinstance(outcome, Failed)
            saver.discard(number)
            return
        assert isinstance(outcome, Saved), outcome
        saver.commit(number, manifest_of(number, outcome.files, epoch=epoch))
        outcome = settle(saver)
        assert isinstance(outcome, Committed), outcome


def found(store: Path) -> Good:
    """What a restart continues, complete and unmixed."""
    manifest = find_usable(Generations(store), SoloRanks()).manifest
    if manifest is None:
        return Good(0, 0)
    good = Good(manifest.generation, manifest.epoch)
    assert read(store, good.number) == content(good.number, good.epoch), f"generation {good} is not as it was written"
    return good


def recover(store: Path, told: Sequence[object], tell: Tell) -> None:
    """Continue what can be continued, as a start of the server does, and save the next generation."""
    newest = read_epochs(store).newest
    started, tried = _highest(told, Started), _highest(told, Starting)
    assert started <= newest <= max(started, tried), f"epoch {newest} is the newest, and {started} had begun"
    good = found(store)
    assert good in _expected(told), f"{good} was found, and not {_expected(told)}"
    tell(good)
    tell(Starting(newest + 1))
    epoch = start(store, base=good.number).epoch
    assert epoch == newest + 1
    tell(Started(epoch))
    Generations(store).sweep()
    save(store, good.number + 1, epoch, tell)
    assert found(store) == Good(good.number + 1, epoch)
    assert not [name for name in names(store) if name.endswith((".tmp", ".old"))], names(store)


def _highest(told: Sequence[object], kind: type[Started] | type[Starting]) -> int:
    return max((fact.epoch for fact in told if isinstance(fact, kind)), default=0)


def _expected(told: Sequence[object]) -> list[Good]:
    """The last one that was said to be good, and those that were tried after it."""
    expected: list[Good] = []
    for fact in told:
        match fact:
            case Good():
                expected = [fact]
            case Saving(number=number, epoch=epoch):
                expected.append(Good(number, epoch))
    return expected


def _fail(file: ChecksumFile) -> None:
    file.write(bytes(1000))
    raise OSError("this part cannot be written")


def _nothing(store: Path) -> Good:
    return Good(0, 0)


def _two(store: Path) -> Good:
    start(store)
    save(store, 1, 1)
    save(store, 2, 1)
    return Good(2, 1)


def _leftovers(store: Path) -> Good:
    """Epoch 2 continued generation 1 and came to nothing; epoch 1 committed a second one all the same."""
    _two(store)
    start(store, base=1)
    shutil.copytree(store / "000001", store / "000002.epoch-2.tmp")
    shutil.copytree(store / "000001", store / "000000.old")
    return Good(1, 1)


def _damaged(store: Path) -> Good:
    _two(store)
    file = store / "000002" / "study.state"
    file.write_bytes(b"X" + file.read_bytes()[1:])
    return Good(1, 1)


def _junk_in_the_way(store: Path) -> Good:
    """Generation 3 has no manifest that can be read, and is found in the way only when it is saved again."""
    _two(store)
    (store / "000003").mkdir()
    (store / "000003" / "manifest.json").write_bytes(b"junk")
    return Good(2, 1)


def _save(store: Path, told: Sequence[object], tell: Tell) -> None:
    save(store, 3, 1, tell)


def _save_after_an_aborted_one(store: Path, told: Sequence[object], tell: Tell) -> None:
    save(store, 3, 1, fails=True)
    save(store, 4, 1, tell)


def _start(store: Path, told: Sequence[object], tell: Tell) -> None:
    for epoch in (2, 3):
        tell(Starting(epoch))
        start(store, base=2)
        tell(Started(epoch))


SCENARIOS = (
    Checkpointing(name="the first checkpoint", before=_nothing, during=recover),
    Checkpointing(name="a checkpoint", before=_two, during=_save),
    Checkpointing(name="a checkpoint after an aborted one", before=_two, during=_save_after_an_aborted_one),
    Checkpointing(name="starts of the server", before=_two, during=_start),
    Checkpointing(name="a start after a fenced server", before=_leftovers, during=recover),
    Checkpointing(name="a damaged checkpoint", before=_damaged, during=recover),
    Checkpointing(name="a save in the place of junk", before=_junk_in_the_way, during=_save),
)
