"""Small checkpoint folders, in which every file's bytes tell its generation."""

from collections.abc import Mapping
from pathlib import Path

from stream_server.server.checkpoint.checksum_file import ChecksumFile
from stream_server.server.checkpoint.epochs import Epoch, begin_epoch
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.manifest import FileRecord, Manifest
from stream_server.server.checkpoint.part import Part
from stream_server.server.checkpoint.saver import Committed, Failed, Outcome, Saved, Saver
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks import SoloRanks

DEADLINE_S = 20.0
PATHS = ("study.state", "model/model.state", "rank-0/samples.rows", "rank-0/rank.state", "rank-1/samples.rows")


def content(number: int) -> dict[str, bytes]:
    """The files of a generation; the last one is empty."""
    files = {path: f"{path} of {number} ".encode() * (10 + place) for place, path in enumerate(PATHS)}
    return {**files, "rank-1/rank.state": b""}


def start(folder: Path, base: int = 0) -> Epoch:
    return begin_epoch(folder, base=base, batches=10 * base, ranks=2, started="2026-01-01T00:00:00+00:00")


def manifest_of(number: int, files: Mapping[str, FileRecord], *, epoch: int = 1, base: int = 0) -> Manifest:
    return Manifest(
        generation=number,
        epoch=epoch,
        base=base,
        ranks=2,
        batches=10 * number,
        created="2026-01-01T00:00:00+00:00",
        config_digest="0123456789abcdef",
        versions={"numpy": "2"},
        files=files,
    )


def part(path: str, data: bytes) -> Part:
    def write(file: ChecksumFile) -> None:
        file.write(data)

    return Part(path=path, write=write)


def settle(saver: Saver) -> Outcome:
    assert saver.wait(DEADLINE_S)
    outcome = saver.poll()
    assert outcome is not None
    return outcome


def save(
    folder: Path, number: int, *, epoch: int = 1, keep: int = 2, files: Mapping[str, bytes] | None = None
) -> Outcome:
    """A whole save by a rank that writes the files of both; a failed one is discarded."""
    with Saver(Generations(folder, keep=keep), epoch=epoch, rank=0) as saver:
        saver.begin(number, [part(path, data) for path, data in (files or content(number)).items()])
        outcome = settle(saver)
        if isinstance(outcome, Saved):
            saver.commit(number, manifest_of(number, outcome.files, epoch=epoch))
            outcome = settle(saver)
        if isinstance(outcome, Failed):
            saver.discard(number)
        return outcome


def store(folder: Path, *numbers: int) -> Generations:
    """A folder with these generations of epoch 1."""
    start(folder)
    for number in numbers:
        assert isinstance(save(folder, number, keep=len(numbers)), Committed)
    return Generations(folder)


def read(folder: Path, number: int) -> dict[str, bytes]:
    """The files of a committed generation, without its manifest."""
    top = Generations(folder).path(number)
    found = {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if path != "manifest.json"}


def restart(folder: Path) -> int:
    """The generation that a restart continues, complete and unmixed; 0 for none."""
    generations = Generations(folder)
    generations.sweep()
    manifest = find_usable(generations, SoloRanks()).manifest
    if manifest is None:
        return 0
    assert read(folder, manifest.generation) == content(manifest.generation)
    return manifest.generation


def names(folder: Path) -> set[str]:
    """What lies in a checkpoint folder besides the list of epochs."""
    return {path.name for path in folder.iterdir()} - {"epochs.jsonl", "epochs.lock"}
