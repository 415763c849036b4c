"""The best models on disk, beside the generations."""

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_server.disk import make_folder, read_file, remove_tree, rename_folder, sync_folder
from stream_server.errors import DamagedCheckpoint
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.checksum_file import ChecksumFile, record_of
from stream_server.server.checkpoint.manifest import FileRecord, is_inside
from stream_server.server.checkpoint.part import Part
from stream_server.server.sealed import sealed, unsealed

BEST = "best"
FACTS_FILE = "facts.json"

_OURS = re.compile(r"batch-\d{6,}(\.tmp|\.old)?")

_log = logging.getLogger(__name__)


class BestFolder:
    """Models under the number of the batch after which they were validated. Rank 0 only.

    Each is a folder with the files of the model, by the paths that they have in a generation, and facts.json; it is
    there completely or not at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, batch: int) -> Path:
        """Where the model after this batch is."""
        return self.folder / f"batch-{batch:06d}"

    def write(self, batch: int, parts: Sequence[Part], facts: Mapping[str, Any]) -> Path:
        """Put a model on disk, in the place of one of the same batch; `facts` are plain.

        Raises:
            OSError: the disk is full or fails; a model of the same batch is still there, or gone.
        """
        path = self.path(batch)
        temporary = path.with_name(f"{path.name}.tmp")
        remove_tree(temporary)
        try:
            files = {part.path: _written(temporary, part).to_json() for part in parts}
            text = sealed({**facts, "files": files})
            _written(temporary, Part(path=FACTS_FILE, write=lambda file: file.write(text)))
            for folder in {(temporary / name).parent for name in (*files, FACTS_FILE)}:
                sync_folder(folder)
            failpoint("best.before_rename")
            _remove(path)
            rename_folder(temporary, path)
            failpoint("best.renamed")
        except BaseException:
            remove_tree(temporary)
            raise
        return path

    def keep_only(self, batches: Collection[int]) -> None:
        """Remove the models of all other batches, and what was left half-written; what cannot be removed is logged."""
        kept = {self.path(batch).name for batch in batches}
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        for name in sorted(name for name in names if _OURS.fullmatch(name) and name not in kept):
            try:
                _remove(self.folder / name)
            except OSError as error:
                _log.warning("%s could not be removed: %s", self.folder / name, error)


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a best model, every byte of which is as it was written.

    Raises:
        DamagedCheckpoint: a file is missing or is another one.
    """
    try:
        facts = unsealed(read_file(folder / FACTS_FILE))
        files = {path: FileRecord.from_json(record) for path, record in facts["files"].items()}
        if type(facts["batch"]) is not int or not all(map(is_inside, files)):
            raise ValueError(f"{FACTS_FILE} tells of no batch, or of files that are elsewhere")
        wrong = next((path for path, record in files.items() if record_of(folder / path) != record), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{folder} is no model that can be read: {error}") from error
    if wrong is not None:
        raise DamagedCheckpoint(f"{folder / wrong} is not as it was written")
    return facts


def _remove(folder: Path) -> None:
    if folder.is_dir() and not folder.suffix:
        old = folder.with_name(f"{folder.name}.old")
        remove_tree(old)
        # Under this name it is none any more: a crash half-way leaves nothing that looks like a model.
        rename_folder(folder, old)
        folder = old
    remove_tree(folder)


def _written(folder: Path, part: Part) -> FileRecord:
    path = folder / part.path
    make_folder(path.parent)
    with ChecksumFile(path) as file:
        part.write(file)
        return file.close()
