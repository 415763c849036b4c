"""The damages that can be done to a store: each has a name that says all of it."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.faults.sweep.corruption.stores.store import Store
from tests.faults.sweep.corruption.ways import ON_BYTES, ON_FILES, OnBytes

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """`do` damages the copy of a store in a folder; `file` of it, in a way of this kind, the `number`-th such."""

    store: str
    file: str
    kind: str
    number: int
    do: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.store}/{self.file}: {self.kind} {self.number}"


class Damages:
    """The damages to a store, whose `original` is one study's, and `other` another's."""

    def __init__(self, store: Store, original: Path, other: Path) -> None:
        self._store = store
        self._original = original
        self._other = other
        self._files = store.files(original)

    def sample(self, num: int, generator: random.Random) -> list[Damage]:
        """About so many: every replacement of every file, if there is room, and as many changes of bytes."""
        replacements = [*self._replacements(), *self._of_the_whole()]
        chosen = _at_most(replacements, max(1, num // 2), generator)
        for file in self._files:
            share = max(1, (num - len(chosen)) // max(1, len(self._files)))
            chosen += self._changes(file, share, generator)
        return chosen + self._more_flips(num - len(chosen), {str(damage) for damage in chosen}, generator)

    def _more_flips(self, num: int, there: set[str], generator: random.Random) -> list[Damage]:
        """In place of what other files have no room for."""
        if num <= 0:
            return []
        flip = ON_BYTES[0]
        contents = {file: (self._original / file).read_bytes() for file in self._files}
        every = [(file, bit) for file, data in contents.items() for bit in range(flip.count(data))]
        flips = [self._change(file, flip, bit, contents[file]) for file, bit in _at_most(every, 2 * num, generator)]
        return [damage for damage in flips if str(damage) not in there][:num]

    def _changes(self, file: str, num: int, generator: random.Random) -> list[Damage]:
        """Half of them are flipped bits, the others all other ways by turns."""
        data = (self._original / file).read_bytes()
        flip, *others = ON_BYTES if not self._store.is_unbound else [way for way in ON_BYTES if not way.keeps_lines]
        rest = [(way, number) for way in others for number in _numbers(way.count(data), num, generator)]
        chosen = _at_most(rest, num // 2, generator)
        chosen += [(flip, bit) for bit in _numbers(flip.count(data), num - len(chosen), generator)]
        return [self._change(file, way, number, data) for way, number in chosen if way.change(data, number) != data]

    def _change(self, file: str, way: OnBytes, number: int, data: bytes) -> Damage:
        def do(folder: Path) -> None:
            (folder / file).write_bytes(way.change(data, number))

        return Damage(store=self._store.name, file=file, kind=way.name, number=number, do=do)

    def _replacements(self) -> Iterator[Damage]:
        for file in self._files:
            for name, replace in ON_FILES:
                yield self._damage(file, name, 0, lambda folder, file=file, replace=replace: replace(folder / file))
            for number, path in enumerate(self._others_like(file)):
                yield self._damage(
                    file, "exchanged", number, lambda folder, file=file, path=path: _put(path, folder / file)
                )

    def _others_like(self, file: str) -> list[Path]:
        """Files that might be taken for this one: of another rank, checkpoint, incarnation or study, or beside it."""
        data = (self._original / file).read_bytes()
        name = Path(file).name
        similar = [path for path in sorted(self._original.rglob("*")) if path.is_file()]
        similar = [path for path in similar if path.name == name or path.suffix == Path(file).suffix]
        others = [] if self._store.is_unbound else [self._other / file]
        return [path for path in (*similar, *others) if path.exists() and path.read_bytes() != data]

    def _of_the_whole(self) -> Iterator[Damage]:
        """Whole folders, of checkpoints only."""
        older, newer = "000001", "000002"
        if not (self._original / newer).is_dir():
            return

        def replaced(folder: Path) -> None:
            shutil.rmtree(folder / newer)
            shutil.copytree(folder / older, folder / newer)

        def linked(folder: Path) -> None:
            shutil.rmtree(folder / newer)
            (folder / newer).symlink_to(older)

        def files_under_the_newer_manifest(folder: Path) -> None:
            manifest = (folder / newer / "manifest.json").read_bytes()
            replaced(folder)
            (folder / newer / "manifest.json").write_bytes(manifest)

        def ranks_exchanged(folder: Path) -> None:
            first, second, between = (folder / newer / name for name in ("rank-0", "rank-1", "between"))
            first.rename(between)
            second.rename(first)
            between.rename(second)

        ways = (replaced, linked, files_under_the_newer_manifest, ranks_exchanged)
        for number, way in enumerate(ways):
            yield self._damage(newer, "folder " + way.__name__.replace("_", " "), number, way)

    def _damage(self, file: str, kind: str, number: int, do: Callable[[Path], None]) -> Damage:
        return Damage(store=self._store.name, file=file, kind=kind, number=number, do=do)


def _put(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _numbers(total: int, num: int, generator: random.Random) -> Sequence[int]:
    return range(total) if total <= num else sorted(generator.sample(range(total), num))


def _at_most(items: list[T], num: int, generator: random.Random) -> list[T]:
    return items if len(items) <= num else generator.sample(items, num)
