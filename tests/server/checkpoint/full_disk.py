"""Saves larger and larger checkpoints into a folder until one does not fit, and then a small one again.

    python -m tests.server.checkpoint.full_disk FOLDER [LIMIT]

With LIMIT, no file may be larger than so many bytes: what stands in for a full disk where none can be mounted.
"""

import resource
import sys
from pathlib import Path

from stream_server.server.checkpoint.failed_saves import reason_of
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.saver import Saver
from tests.support.checkpoint_stores import SaveOutcome, names, part, save_with, start


def save(saver: Saver, number: int, size: int) -> SaveOutcome:
    parts = [part("rank-0/samples.rows", bytes([number]) * size), part("study.state", b"study")]
    return save_with(saver, number, parts)


def main(folder: Path, limit: int | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    start(folder)
    checkpoints = CheckpointFolder(folder, keep=2)
    with Saver(checkpoints, incarnation=1, rank=0) as saver:
        number, outcome = 0, None
        while not isinstance(outcome, Exception):
            number += 1
            outcome = save(saver, number, number << 18)
        print(reason_of(outcome).partition(" (")[0])
    good = [f"{number - 2:06d}", f"{number - 1:06d}"]
    assert names(folder) == set(good), names(folder)
    for name in good:
        manifest = checkpoints.manifest(int(name))
        assert not checkpoints.verify(manifest, manifest.files)
    with Saver(checkpoints, incarnation=1, rank=0) as saver:
        assert isinstance(save(saver, number + 1, 10), Path)
    assert names(folder) == {good[1], f"{number + 1:06d}"}


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "checkpoints", int(sys.argv[2]) if len(sys.argv) > 2 else None)
