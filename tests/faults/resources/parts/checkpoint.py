"""A save that does not fit costs nothing but itself, and the next one that fits is committed."""

import random
from collections.abc import Iterator
from pathlib import Path

from stream_server.server.checkpoint.failed_saves import reason_of
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks.communicator import SoloRanks
from tests.support.checkpoint_stores import PATHS, SaveOutcome, names, part, save_with, start
from tests.support.small_disk import PAGE, SmallDisk

LARGEST_FILE = 8 * PAGE


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """Two checkpoints, a third with `num_pages` left, an incarnation on a full disk, and a save once it is clear."""
    sizes = [draw.randrange(LARGEST_FILE) for _ in PATHS]
    checkpoints = CheckpointFolder(folder, keep=2)
    start(folder)
    with Saver(checkpoints, incarnation=1, rank=0) as saver:
        for number in (1, 2):
            assert isinstance(_save(saver, number, sizes), Path)
        disk.leave(num_pages * PAGE)
        outcome = _save(saver, 3, sizes)
    yield from _wrong_outcome(outcome, folder)
    yield from _damage(checkpoints, sizes)
    disk.leave(0)
    yield from _wrong_incarnations(folder)
    disk.clear()
    incarnation = read_incarnations(folder).newest
    with Saver(checkpoints, incarnation=incarnation, rank=0) as saver:
        if not isinstance(_save(saver, 5, sizes, incarnation=incarnation), Path):
            yield "the next save was not committed on a disk that is clear"
    manifest = find_usable(checkpoints, SoloRanks())
    if manifest is None or manifest.checkpoint != 5:
        yield f"a restart would continue {manifest}"
    yield from _damage(checkpoints, sizes)


def _wrong_outcome(outcome: SaveOutcome, folder: Path) -> Iterator[str]:
    left = names(folder)
    if isinstance(outcome, Exception) and not (reason := reason_of(outcome)).startswith("the disk is full"):
        yield f"the reason is {reason!r}"
    expected = {"000001", "000002"} if isinstance(outcome, Exception) else {"000002", "000003"}
    if left != expected:
        yield f"after {outcome} there are {sorted(left)}"


def _wrong_incarnations(folder: Path) -> Iterator[str]:
    before = read_incarnations(folder)
    try:
        start(folder, base=2)
    except OSError:
        if read_incarnations(folder) != before:
            yield "an incarnation that could not be begun has changed the list of incarnations"


def _save(saver: Saver, number: int, sizes: list[int], incarnation: int = 1) -> SaveOutcome:
    parts = [part(path, _content(number, i, sizes[i])) for i, path in enumerate(PATHS)]
    return save_with(saver, number, parts, incarnation=incarnation)


def _content(number: int, place: int, size: int) -> bytes:
    return bytes([16 * number + place]) * size


def _damage(checkpoints: CheckpointFolder, sizes: list[int]) -> Iterator[str]:
    for number in checkpoints.numbers():
        manifest = checkpoints.manifest(number)
        for path, problem in checkpoints.verify(manifest, manifest.files).items():
            yield f"checkpoint {number}: {path} {problem}"
        for i, path in enumerate(PATHS):
            if (checkpoints.path(number) / path).read_bytes() != _content(number, i, sizes[i]):
                yield f"checkpoint {number}: {path} is not what was saved"
