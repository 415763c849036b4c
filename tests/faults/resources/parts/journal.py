"""The journal on a full disk: records that could not be written are absent, noted ones come with the next that fits."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream_server.launcher.journal.journal import JOURNAL_FILE, Journal
from stream_server.launcher.journal.records import decode
from stream_server.messages.launcher_link import GaveUp
from tests.support.small_disk import PAGE, SmallDisk

WORDS = ("amber", "beech", "cedar", "damson", "elder", "fir", "gorse", "hazel", "ivy", "juniper")
LONGEST = 200
LAST = GaveUp(simulation=99_999, attempts=1, redraw=False, reason="the last one")


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """Records until none fits, five that are owed, and one more once the disk is clear."""
    written = []
    with Journal(folder) as journal:
        disk.leave(num_pages * PAGE)
        try:
            while True:
                record = _record(len(written), draw)
                journal.write(record)
                written.append(record)
        except OSError:
            pass
        owed = [_record(len(written) + i, draw) for i in range(5)]
        for record in owed:
            journal.note(record)
        yield from _wrong_content(folder, written, "a full disk")
        disk.clear()
        journal.note(LAST)
        yield from _wrong_content(folder, [*written, *owed, LAST], "a disk that is clear")
    with Journal(folder) as journal:
        if not journal.history.is_given_up(LAST.simulation):
            yield "the next launcher does not know the last record"


def _record(number: int, draw: random.Random) -> GaveUp:
    return GaveUp(
        simulation=number, attempts=1, redraw=False, reason=" ".join(draw.choices(WORDS, k=draw.randrange(LONGEST)))
    )


def _wrong_content(folder: Path, expected: Sequence[GaveUp], where: str) -> Iterator[str]:
    found = list(decode((folder / JOURNAL_FILE).read_bytes()))
    # What was owed may have fitted, if it is shorter than what did not.
    if found[: len(expected)] != expected:
        yield f"on {where} {len(expected)} records were written, but {len(found)} others are read"
