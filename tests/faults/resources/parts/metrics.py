"""Metrics that do not fit are not written, which ends nothing; the next start goes on with the files."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_own_writer, open_writers
from stream_server.server.ranks.communicator import SoloRanks
from tests.support.small_disk import PAGE, SmallDisk

NUM_BATCHES = 40
KEPT = 20
NUM_NAMES = 60


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """Many names and histograms with `num_pages` left, and again from an earlier batch once the disk is clear."""
    _log(disk, folder, range(1, NUM_BATCHES + 1), draw, num_left=num_pages * PAGE)
    yield from _left_behind(folder)
    disk.clear()
    _log(disk, folder, range(KEPT + 1, NUM_BATCHES + 1), draw)
    for name in ("metrics.jsonl", "rank-0.jsonl"):
        batches = [json.loads(line)["batch"] for line in (folder / name).read_text().splitlines()]
        if batches != sorted(set(batches)) or batches[KEPT - NUM_BATCHES :] != list(range(KEPT + 1, NUM_BATCHES + 1)):
            yield f"{name} has the batches {batches}"
    yield from _left_behind(folder)


def _left_behind(folder: Path) -> Iterator[str]:
    if left := [path.name for path in folder.rglob("*.tmp")]:
        yield f"left behind: {left}"


def _log(
    disk: SmallDisk, folder: Path, batches: Sequence[int], draw: random.Random, num_left: int | None = None
) -> None:
    after = batches[0] - 1
    run = LoggedRun(folder=folder, after=after)
    writers, own = open_writers(run), open_own_writer(run, 0)
    with Metrics(SoloRanks(), writers, own=own) as metrics:
        if num_left is not None:
            disk.leave(num_left)
        for batch in batches:
            # A name that is new moves all rows of the table into another file.
            for _ in range(4):
                metrics.log(f"name-{draw.randrange(NUM_NAMES)}", draw.random())
            metrics.log_histogram("values", [draw.gauss(0, 1) for _ in range(50)])
            metrics.write(batch, float(batch))
