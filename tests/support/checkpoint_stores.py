"""Small checkpoint folders, in which every file's bytes tell its checkpoint."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from stream_server.server.checkpoint.folder import CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import Incarnation, begin_incarnation
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.storage.checksums import ChecksumFile, FileRecord
from stream_server.storage.folders import PendingFile

SaveOutcome = Path | Exception
"""The folder of a committed checkpoint, or why there is none."""

DEADLINE_S = 60.0
PATHS = ("study.state", "model/model.state", "rank-0/samples.rows", "rank-0/rank.state", "rank-1/samples.rows")


def content(number: int) -> dict[str, bytes]:
    """The files of a checkpoint; the last one is empty."""
    files = {path: f"{path} of {number} ".encode() * (10 + place) for place, path in enumerate(PATHS)}
    return {**files, "rank-1/rank.state": b""}


def start(folder: Path, base: int = 0) -> Incarnation:
    return begin_incarnation(folder, base=base, batches=10 * base, ranks=2, started="2026-01-01T00:00:00+00:00")


def manifest_of(number: int, files: Mapping[str, FileRecord], *, incarnation: int = 1, base: int = 0) -> Manifest:
    return Manifest(
        checkpoint=number,
        incarnation=incarnation,
        base=base,
        ranks=2,
        batches=10 * number,
        created="2026-01-01T00:00:00+00:00",
        class_digest="0123456789abcdef",
        versions={"numpy": "2"},
        files=files,
    )


def part(path: str, data: bytes) -> PendingFile:
    def write(file: ChecksumFile) -> None:
        file.write(data)

    return PendingFile(path=path, write=write)


def save_with(saver: Saver, number: int, files: Iterable[PendingFile], **manifest: int) -> SaveOutcome:
    """A whole save by the only rank that writes; a failed one is discarded."""
    try:
        written = saver.write(number, [*files]).result(DEADLINE_S)
        return saver.commit(manifest_of(number, written, **manifest)).result(DEADLINE_S)
    except Exception as error:
        saver.discard()
        return error


def save(
    folder: Path, number: int, *, incarnation: int = 1, keep: int = 2, files: Mapping[str, bytes] | None = None
) -> SaveOutcome:
    """A whole save by a rank that writes the files of both; a failed one is discarded."""
    parts = [part(path, data) for path, data in (files or content(number)).items()]
    with Saver(CheckpointFolder(folder, keep=keep), incarnation=incarnation, rank=0) as saver:
        return save_with(saver, number, parts, incarnation=incarnation)


def store(folder: Path, *numbers: int) -> CheckpointFolder:
    """A folder with these checkpoints of incarnation 1."""
    start(folder)
    for number in numbers:
        assert isinstance(save(folder, number, keep=len(numbers)), Path)
    return CheckpointFolder(folder)


def raise_it(error: OSError) -> None:
    raise error


def read(folder: Path, number: int) -> dict[str, bytes]:
    """The files of a committed checkpoint, without its manifest."""
    top = CheckpointFolder(folder).path(number)
    # A folder that cannot be read is an error for os.walk, and has no files for rglob of Python 3.13.
    paths = [Path(place, name) for place, _, names in os.walk(top, onerror=raise_it) for name in names]
    found = {path.relative_to(top).as_posix(): path.read_bytes() for path in paths}
    return {path: data for path, data in found.items() if path != "manifest.json"}


def restart(folder: Path) -> int:
    """The checkpoint that a restart continues, complete and unmixed; 0 for none."""
    checkpoints = CheckpointFolder(folder)
    checkpoints.sweep()
    manifest = find_usable(checkpoints, SoloRanks())
    if manifest is None:
        return 0
    assert read(folder, manifest.checkpoint) == content(manifest.checkpoint)
    return manifest.checkpoint


def names(folder: Path) -> set[str]:
    """The names in a checkpoint folder besides the list of incarnations."""
    return {path.name for path in folder.iterdir()} - {"incarnations.json", "incarnations.lock"}
