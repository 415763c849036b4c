"""Generations 1 and 2 of two ranks with samples in their buffers, and the list of the epochs that made them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stream_server.buffers import Firo
from stream_server.errors import NoUsableCheckpoint
from stream_server.server.checkpoint.checksum_file import record_of
from stream_server.server.checkpoint.epochs import begin_epoch
from stream_server.server.checkpoint.generations import REASON_FILE, Generations
from stream_server.server.checkpoint.random_state import random_states, set_random_states
from stream_server.server.checkpoint.search import find_usable
from stream_server.server.plain_state import read_state
from stream_server.server.ranks import SoloRanks
from tests.server.checkpoint.stores import manifest_of, start
from tests.server.saved_ranks import SavedStudyRank, deal, restore_all, save_all
from tests.sweep.corruption.stores.store import Store, Verdict

NUM_RANKS = 2


def make(folder: Path, study: int) -> None:
    """Generation 1 of epoch 1; generation 2 of epoch 2, which continued it; and an epoch that saved nothing."""
    with _generators_of(study):
        _make(folder, study)


def read(folder: Path) -> Verdict:
    """Start a server: find what can be continued, load all of it, and begin an epoch."""
    try:
        manifest = find_usable(Generations(folder), SoloRanks()).manifest
    except NoUsableCheckpoint:
        return Verdict.REFUSED
    assert manifest is not None, "a study with checkpoints began anew"
    number = manifest.generation
    if number == 1:
        assert (folder / "000002.damaged" / REASON_FILE).read_text(), "nobody is told why"
    epoch = begin_epoch(folder, base=number, batches=1, ranks=2, started="2026-01-02T00:00:00+00:00").epoch
    assert epoch == 4, f"epoch {epoch} began after 3"
    return Verdict.WHOLE if number == 2 else Verdict.OLDER


def loads(folder: Path) -> bool:
    """Whether the newest generation has what the ranks had, and can be continued."""
    top = Generations(folder).path(2)
    read_state(top / "study.state")
    _, ranks = restore_all(top, NUM_RANKS, NUM_RANKS, _policy)
    return all(rank.buffer.num_unseen + rank.buffer.num_waiting > 0 for rank in ranks)


def _make(folder: Path, study: int) -> None:
    generations = Generations(folder)
    start(folder)
    ranks = [SavedStudyRank(_policy(rank), rank, NUM_RANKS) for rank in range(NUM_RANKS)]
    for number in (1, 2):
        deal([(simulation, 10 * number + step) for simulation in (0, number + study) for step in range(8)], ranks)
        ranks[-1].draw(3)
        save_all(ranks, generations.temporary(number, number))
        _commit(generations, number)
        start(folder, number)


def _commit(generations: Generations, number: int) -> None:
    temporary = generations.temporary(number, number)
    paths = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
    files = {path.relative_to(temporary).as_posix(): record_of(path) for path in paths}
    generations.commit(number, manifest_of(number, files, epoch=number, base=number - 1))


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


STORE = Store(name="checkpoints", make=make, read=read, targets=("000002/**/*", "epochs.jsonl"), older="000001")
