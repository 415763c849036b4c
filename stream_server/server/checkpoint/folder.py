"""The checkpoints of a study on disk: their names, their files, and the manifest that lists these."""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stream_server.errors import DamagedCheckpoint, OtherFormat
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.incarnations import Incarnations, read_incarnations
from stream_server.storage.checksums import FileRecord, checksummed_json, parse_checksummed_json
from stream_server.storage.disk import (
    exists,
    names_in,
    open_regular,
    place_of,
    remove_tree,
    rename_folder,
    write_file,
)
from stream_server.storage.folders import damaged_files, records_from_json, records_to_json, withdraw
from stream_server.storage.typed import from_json, quoted

FORMAT = 9
MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20

# The files of a checkpoint. Those of a rank are in its `rank_folder`.
STUDY = "study.state"
MODEL = "model/model.state"
USER = "model/user.state"
CALLBACKS = "model/callbacks.state"
MILESTONE_FILE = "milestone.txt"
RANK = "rank.state"
RANK_USER = "user.state"
SHARDS = "shards.state"
SAMPLES = "samples.rows"
# By their names in the state of the rank.
ROWS = {"buffer": SAMPLES, "held_out": "held-out.rows", "statics": "static-fields.rows"}

REASON_FILE = "reason.txt"

_COMMITTED = re.compile(r"\d{6,}")
_DAMAGED = re.compile(r"\d{6,}\.damaged(\.\d+)?")
_LEFTOVER = re.compile(r"\d{6,}((\.incarnation-\d+)?\.tmp|\.old)")
_COUNTS = ("checkpoint", "incarnation", "base", "ranks", "batches")

_log = logging.getLogger(__name__)


def rank_folder(rank: int) -> str:
    """The folder of a rank's files within a checkpoint."""
    return f"rank-{rank}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The description of a checkpoint, with size and checksum of every other file by its path in the checkpoint.

    `incarnation` is the start of the server that wrote it, and `base` the checkpoint which that start continued, 0 for
    none; `ranks` is the number of ranks, and `created` is for people. `class_digest` is that of the file with the
    server class, "" where it is of a package.
    """

    checkpoint: int
    incarnation: int
    base: int
    ranks: int
    batches: int
    created: str
    class_digest: str
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """The content of manifest.json; the same manifest always gives the same bytes."""
        return checksummed_json({**asdict(self), "files": records_to_json(self.files)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Read back what `to_bytes` gave.

        Raises:
            DamagedCheckpoint: a byte of it is another.
            OtherFormat: another release wrote it.
        """
        try:
            plain = parse_checksummed_json(data)
            if plain["format"] != FORMAT:
                raise OtherFormat(f"it has format {quoted(plain['format'])}, and this release reads format {FORMAT}")
            manifest = from_json(cls, {**plain, "files": records_from_json(plain["files"])})
            wrong = [name for name in _COUNTS if getattr(manifest, name) < 0]
            if wrong or MANIFEST_FILE in manifest.files:
                raise ValueError(f"{', '.join(wrong) or 'files'} cannot be")
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedCheckpoint(f"{MANIFEST_FILE} is no manifest: {error}"[:200]) from error
        return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest in the folder of a checkpoint.

    Raises:
        DamagedCheckpoint: it cannot be read.
        OtherFormat: another release wrote it.
    """
    try:
        with open(folder / MANIFEST_FILE, "rb", opener=open_regular) as file:
            return Manifest.from_bytes(file.read(MAX_MANIFEST_BYTES))
    except OSError as error:
        raise DamagedCheckpoint(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error


class CheckpointFolder:
    """The folder of all checkpoints. Each is a folder named by its number, and is there completely or not at all.

    While it is written it is called NUMBER.incarnation-E.tmp, so that an older server that wakes up writes into another
    folder. NUMBER.old is being removed, NUMBER.damaged was found damaged, and NUMBER.incarnation-E was committed by
    an older server after a newer one had begun. Only rank 0 changes the folder, except that all ranks write below
    NUMBER.incarnation-E.tmp. The newest `keep` checkpoints and all milestones stay.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"At least 1 checkpoint must be kept, but keep is {keep}.")
        self.folder = folder
        self._keep = keep

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def temporary(self, number: int, incarnation: int) -> Path:
        return self.folder / f"{number:06d}.incarnation-{incarnation}.tmp"

    def numbers(self) -> list[int]:
        """The numbers of the committed checkpoints that are there, valid or not, oldest first."""
        names = names_in(self.folder)
        numbers = sorted(int(name) for name in names if _COMMITTED.fullmatch(name))
        return [number for number in numbers if Path(place_of(self.path(number))).is_dir()]

    def were_damaged(self) -> bool:
        return any(_DAMAGED.fullmatch(name) for name in names_in(self.folder))

    def manifest(self, number: int) -> Manifest:
        """The manifest of a committed checkpoint.

        Raises:
            DamagedCheckpoint: it cannot be read, or is of another checkpoint.
        """
        manifest = read_manifest(self.path(number))
        if manifest.checkpoint != number:
            raise DamagedCheckpoint(f"{MANIFEST_FILE} is that of checkpoint {manifest.checkpoint}")
        return manifest

    def verify(self, manifest: Manifest, paths: Iterable[str]) -> dict[str, str]:
        """Read these files of a committed checkpoint; returns what is wrong with each that is not as it was written.

        Ranks may share the files among them.
        """
        return damaged_files(self.path(manifest.checkpoint), manifest.files, paths)

    def set_aside(self, number: int, why: str) -> Path:
        """Take a damaged checkpoint out of the way; it is kept, with the reason in a file."""
        path = self.unused_path(f"{number:06d}.damaged")
        rename_folder(self.path(number), path)
        _log.warning("checkpoint %d is damaged and was set aside as %s: %s", number, path, why)
        try:
            write_file(path / REASON_FILE, f"{why}\n".encode())
        except OSError as error:
            _log.warning("the reason could not be written beside it: %s", error)
        return path

    def prune(self) -> list[int]:
        """Remove all but the newest valid checkpoints and milestones; returns the numbers of the removed ones.

        Raises:
            OSError: one could not be removed; it is not valid any more, and a later `sweep` finds it.
        """
        incarnations = read_incarnations(self.folder)
        valid = [number for number in self.numbers() if self._is_valid(number, incarnations)]
        removed = [number for number in valid[: -self._keep] if MILESTONE_FILE not in self.manifest(number).files]
        for number in removed:
            failpoint("checkpoint.before_prune")
            withdraw(self.path(number))
            failpoint("checkpoint.pruned")
        return removed

    def sweep(self) -> list[str]:
        """Remove what earlier starts left half-written or half-removed; before anything new is begun.

        Returns the names. What cannot be removed is logged and stays: it is in nobody's way.
        """
        names = names_in(self.folder)
        swept = []
        for name in sorted(name for name in names if _LEFTOVER.fullmatch(name)):
            try:
                remove_tree(self.folder / name)
                swept.append(name)
            except OSError as error:
                _log.warning("%s is left over and could not be removed: %s", self.folder / name, error)
        return swept

    def _is_valid(self, number: int, incarnations: Incarnations) -> bool:
        try:
            return incarnations.is_valid(number, self.manifest(number).incarnation)
        except DamagedCheckpoint:
            return False

    def unused_path(self, name: str) -> Path:
        """An unused path in the folder: this name, or the name with a number behind it."""
        names = itertools.chain([name], (f"{name}.{copy}" for copy in itertools.count(2)))
        return next(path for path in map(self.folder.joinpath, names) if not exists(path))
