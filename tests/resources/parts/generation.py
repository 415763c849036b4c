"""A save that does not fit costs nothing but itself, and the next one that fits is committed."""

import random
from collections.abc import Iterator
from pathlib import Path

from stream_server.server.checkpoint.epochs import read_epochs
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.saver import Committed, Failed, Outcome, Saved, Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks import SoloRanks
from tests.resources.small_disk import PAGE, SmallDisk
from tests.server.checkpoint.stores import PATHS, manifest_of, names, part, settle, start

LARGEST_FILE = 8 * PAGE


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """Two generations, a third with `num_pages` left, an epoch on a full disk, and a save once it is clear."""
    sizes = [draw.randrange(LARGEST_FILE) for _ in PATHS]
    generations = Generations(folder, keep=2)
    start(folder)
    with Saver(generations, epoch=1, rank=0) as saver:
        for number in (1, 2):
            assert isinstance(_save(saver, number, sizes), Committed)
        disk.leave(num_pages * PAGE)
        outcome = _save(saver, 3, sizes)
        assert saver.wait_idle(20)
        yield from _wrong_outcome(outcome, names(folder))
        yield from _damage(generations, sizes)
    disk.leave(0)
    yield from _wrong_epochs(folder)
    disk.clear()
    epoch = read_epochs(folder).newest
    with Saver(generations, epoch=epoch, rank=0) as saver:
        if not isinstance(_save(saver, 5, sizes, epoch=epoch), Committed):
            yield "the next save was not committed on a disk that is clear"
    manifest = find_usable(generations, SoloRanks()).manifest
    if manifest is None or manifest.generation != 5:
        yield f"a restart would continue {manifest}"
    yield from _damage(generations, sizes)


def _wrong_outcome(outcome: Outcome, left: set[str]) -> Iterator[str]:
    if isinstance(outcome, Failed) and not outcome.reason.startswith("the disk is full"):
        yield f"the reason is {outcome.reason!r}"
    expected = {"000001", "000002"} if isinstance(outcome, Failed) else {"000002", "000003"}
    if left != expected:
        yield f"after {outcome} there are {sorted(left)}"


def _wrong_epochs(folder: Path) -> Iterator[str]:
    before = read_epochs(folder)
    try:
        start(folder, base=2)
    except OSError:
        if read_epochs(folder) != before:
            yield "an epoch that could not be begun has changed the list of epochs"


def _save(saver: Saver, number: int, sizes: list[int], epoch: int = 1) -> Outcome:
    saver.begin(number, [part(path, _content(number, i, sizes[i])) for i, path in enumerate(PATHS)])
    outcome = settle(saver)
    if isinstance(outcome, Saved):
        saver.commit(number, manifest_of(number, outcome.files, epoch=epoch))
        outcome = settle(saver)
    if isinstance(outcome, Failed):
        saver.discard(number)
    return outcome


def _content(number: int, place: int, size: int) -> bytes:
    return bytes([16 * number + place]) * size


def _damage(generations: Generations, sizes: list[int]) -> Iterator[str]:
    for number in generations.numbers():
        manifest = generations.manifest(number)
        for path, problem in generations.verify(manifest, manifest.files).items():
            yield f"generation {number}: {path} {problem}"
        for i, path in enumerate(PATHS):
            if (generations.path(number) / path).read_bytes() != _content(number, i, sizes[i]):
                yield f"generation {number}: {path} is not what was saved"
