"""Checkpoints 1 and 2 of two ranks with samples in their buffers, and the list of the incarnations that made them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stream_server.buffers import Firo
from stream_server.errors import NoUsableCheckpoint
from stream_server.server.checkpoint.folder import REASON_FILE, CheckpointFolder
from stream_server.server.checkpoint.incarnations import begin_incarnation
from stream_server.server.checkpoint.random_states import random_states, set_random_states
from stream_server.server.checkpoint.saver import commit
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.storage.checksums import record_of
from stream_server.storage.plain_state import read_state
from tests.faults.sweep.corruption.stores.store import Store, Verdict
from tests.support.checkpoint_stores import manifest_of, start
from tests.support.saved_ranks import SavedStudyRank, deal, restore_all, save_all

NUM_RANKS = 2


def make(folder: Path, study: int) -> None:
    """Checkpoint 1 of incarnation 1; checkpoint 2 of incarnation 2, which continued it; and one that saved nothing."""
    with _generators_of(study):
        _make(folder, study)


def read(folder: Path) -> Verdict:
    """Start a server: find what can be continued, load all of it, and begin an incarnation."""
    try:
        manifest = find_usable(CheckpointFolder(folder), SoloRanks())
    except NoUsableCheckpoint:
        return Verdict.REFUSED
    assert manifest is not None, "a study with checkpoints began anew"
    number = manifest.checkpoint
    if number == 1:
        assert (folder / "000002.damaged" / REASON_FILE).read_text(), "nobody is told why"
    incarnation = begin_incarnation(
        folder, base=number, batches=1, ranks=2, started="2026-01-02T00:00:00+00:00"
    ).incarnation
    assert incarnation == 4, f"incarnation {incarnation} began after 3"
    return Verdict.WHOLE if number == 2 else Verdict.OLDER


def loads(folder: Path) -> bool:
    """Whether the newest checkpoint has what the ranks had, and can be continued."""
    top = CheckpointFolder(folder).path(2)
    read_state(top / "study.state")
    _, ranks = restore_all(top, NUM_RANKS, NUM_RANKS, _policy)
    return all(rank.buffer.num_unseen + rank.buffer.num_waiting > 0 for rank in ranks)


def _make(folder: Path, study: int) -> None:
    checkpoints = CheckpointFolder(folder)
    start(folder)
    ranks = [SavedStudyRank(_policy(rank), rank, NUM_RANKS) for rank in range(NUM_RANKS)]
    for number in (1, 2):
        deal([(simulation, 10 * number + step) for simulation in (0, number + study) for step in range(8)], ranks)
        ranks[-1].draw(3)
        save_all(ranks, checkpoints.temporary(number, number))
        _commit(checkpoints, number)
        start(folder, number)


def _commit(checkpoints: CheckpointFolder, number: int) -> None:
    temporary = checkpoints.temporary(number, number)
    paths = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
    files = {path.relative_to(temporary).as_posix(): record_of(path) for path in paths}
    commit(checkpoints, manifest_of(number, files, incarnation=number, base=number - 1))


@contextmanager
def _generators_of(study: int) -> Iterator[None]:
    """The global random generators, whose states are saved, are in the same state each time."""
    before = random_states()
    random.seed(study)
    np.random.seed(study)
    try:
        yield
    finally:
        set_random_states(before)


def _policy(rank: int) -> Firo:
    return Firo(capacity=12, watermark=2, pseudo_epochs=2, seed=(rank,))


STORE = Store(name="checkpoints", make=make, read=read, targets=("000002/**/*", "incarnations.json"), older="000001")
