"""Checkpoints: a restart continues the newest checkpoint that was committed, or the one that was being committed."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.storage.checksums import ChecksumFile
from stream_server.storage.folders import PendingFile
from tests.faults.disk.scenarios.scenario import Tell
from tests.support.checkpoint_stores import DEADLINE_S, manifest_of, names, part, read, start

STORE = "run/checkpoints"


@dataclass(frozen=True, slots=True)
class Starting:
    """This incarnation is about to begin."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Started:
    """It has begun."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Saving:
    """This checkpoint is about to be committed."""

    number: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Good:
    """It is what a restart continues; number 0 is the beginning of the study."""

    number: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointing:
    """Checkpoints are written; `before` makes those that were there, and gives the good one, `during` goes on."""

    name: str
    before: Callable[[Path], Good]
    during: Callable[[Path, Sequence[object], Tell], None]

    def prepare(self, folder: Path) -> Sequence[object]:
        good = self.before(folder / STORE)
        return [Started(read_incarnations(folder / STORE).newest), good]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        self.during(folder / STORE, told, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        recover(folder / STORE, told, tell)


class Telling(CheckpointFolder):
    """Says that a checkpoint is committed, before older ones are removed."""

    def __init__(self, folder: Path, good: Good, tell: Tell) -> None:
        super().__init__(folder)
        self._good = good
        self._tell = tell

    def prune(self) -> list[int]:
        self._tell(self._good)
        return super().prune()


def content(number: int, incarnation: int) -> dict[str, bytes]:
    """The files of a checkpoint, no two of which are alike; the last one is empty."""
    paths = ("study.state", "model/model.state", "rank-0/samples.rows")
    files = {
        path: f"{path} of {number} by {incarnation} ".encode() * (12 + 20 * place) for place, path in enumerate(paths)
    }
    return {**files, "rank-0/rank.state": b""}


def save(store: Path, number: int, incarnation: int, tell: Tell = lambda fact: None, *, fails: bool = False) -> None:
    """Write and commit a checkpoint; one that `fails` does so after some of its files, and is given up."""
    parts = [part(path, data) for path, data in content(number, incarnation).items()]
    if fails:
        parts.insert(2, PendingFile(path="rank-0/broken", write=_fail))
    save_parts(store, number, incarnation, parts, tell, fails=fails)


def save_parts(
    store: Path,
    number: int,
    incarnation: int,
    parts: Sequence[PendingFile],
    tell: Tell = lambda fact: None,
    *,
    fails: bool = False,
) -> None:
    """Write and commit a checkpoint of these files, or give it up if one of them `fails`."""
    with Saver(Telling(store, Good(number, incarnation), tell), incarnation=incarnation, rank=0) as saver:
        written = saver.write(number, parts)
        if fails:
            assert written.exception(DEADLINE_S) is not None
            saver.discard()
            return
        files = written.result(DEADLINE_S)
        tell(Saving(number, incarnation))
        saver.commit(manifest_of(number, files, incarnation=incarnation)).result(DEADLINE_S)


def newest(store: Path) -> Good:
    """The checkpoint that a restart continues."""
    manifest = find_usable(CheckpointFolder(store), SoloRanks())
    return Good(0, 0) if manifest is None else Good(manifest.checkpoint, manifest.incarnation)


def found(store: Path) -> Good:
    """The same, complete and unmixed."""
    good = newest(store)
    assert not good.number or read(store, good.number) == content(good.number, good.incarnation), (
        f"checkpoint {good} is not as it was written"
    )
    return good


def recover(store: Path, told: Sequence[object], tell: Tell) -> None:
    """Continue what can be continued, as a start of the server does, and save the next checkpoint."""
    good, incarnation = restart(store, told, tell)
    assert found(store) == good
    save(store, good.number + 1, incarnation, tell)
    assert found(store) == Good(good.number + 1, incarnation)
    assert not [name for name in names(store) if name.endswith((".tmp", ".old"))], names(store)


def restart(store: Path, told: Sequence[object], tell: Tell) -> tuple[Good, int]:
    """Begin the next incarnation, which continues what can be continued; gives that, and its number."""
    before = read_incarnations(store).newest
    started, tried = _highest(told, Started), _highest(told, Starting)
    assert started <= before <= max(started, tried), f"incarnation {before} is the newest, and {started} had begun"
    good = newest(store)
    assert good in _expected(told), f"{good} was found, and not {_expected(told)}"
    tell(good)
    tell(Starting(before + 1))
    incarnation = start(store, base=good.number).incarnation
    assert incarnation == before + 1
    tell(Started(incarnation))
    CheckpointFolder(store).sweep()
    return good, incarnation


def _highest(told: Sequence[object], kind: type[Started] | type[Starting]) -> int:
    return max((fact.incarnation for fact in told if isinstance(fact, kind)), default=0)


def _expected(told: Sequence[object]) -> list[Good]:
    """The last one that was said to be good, and those that were tried after it."""
    expected: list[Good] = []
    for fact in told:
        match fact:
            case Good():
                expected = [fact]
            case Saving(number=number, incarnation=incarnation):
                expected.append(Good(number, incarnation))
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
    """Incarnation 2 continued checkpoint 1 and came to nothing; incarnation 1 committed a second one all the same."""
    _two(store)
    start(store, base=1)
    shutil.copytree(store / "000001", store / "000002.incarnation-2.tmp")
    shutil.copytree(store / "000001", store / "000000.old")
    return Good(1, 1)


def _damaged(store: Path) -> Good:
    _two(store)
    file = store / "000002" / "study.state"
    file.write_bytes(b"X" + file.read_bytes()[1:])
    return Good(1, 1)


def _junk_in_the_way(store: Path) -> Good:
    """Checkpoint 3 has no manifest that can be read, and is found in the way only when it is saved again."""
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
    for incarnation in (2, 3):
        tell(Starting(incarnation))
        start(store, base=2)
        tell(Started(incarnation))


SCENARIOS = (
    Checkpointing(name="the first checkpoint", before=_nothing, during=recover),
    Checkpointing(name="a checkpoint", before=_two, during=_save),
    Checkpointing(name="a checkpoint after an aborted one", before=_two, during=_save_after_an_aborted_one),
    Checkpointing(name="starts of the server", before=_two, during=_start),
    Checkpointing(name="a start after a fenced server", before=_leftovers, during=recover),
    Checkpointing(name="a damaged checkpoint", before=_damaged, during=recover),
    Checkpointing(name="a save in the place of junk", before=_junk_in_the_way, during=_save),
)
