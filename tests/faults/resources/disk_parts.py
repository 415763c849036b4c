"""The writing parts of a server on a disk that fills up, with every number of pages that may be left.

    python -m tests.faults.resources.disk_parts FOLDER SEED PAGES …    (FOLDER on a small disk)

Prints a line of JSON: how many cases of each kind there were, and the violations.
"""

import json
import logging
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.resources.parts import checkpoint, journal, metrics, model, record
from tests.support.small_disk import SmallDisk

Case = Callable[[SmallDisk, Path, int, random.Random], Iterator[str]]

CASES: dict[str, Case] = {
    "checkpoint": checkpoint.case,
    "journal": journal.case,
    "record": record.case,
    "metrics": metrics.case,
    "model": model.case,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The outcome of the cases: how many of each kind there were, and sentences about those that went wrong."""

    cases: dict[str, int]
    violations: list[str]


def every_case(folder: Path, seed: int, pages: Sequence[int]) -> Found:
    """Each kind of case with each of these numbers of pages left."""
    counts, violations = Counter[str](), []
    disk = SmallDisk(folder)
    for num_pages in pages:
        for kind, case in CASES.items():
            draw = random.Random(f"{seed}/{kind}/{num_pages}")
            work = folder / kind
            work.mkdir()
            violations += [
                f"{kind}, {num_pages} pages left: {text}" for text in _run(case, disk, work, num_pages, draw)
            ]
            disk.clear()
            shutil.rmtree(work)
            counts[kind] += 1
    return Found(cases=dict(counts), violations=violations)


def _run(case: Case, disk: SmallDisk, work: Path, num_pages: int, draw: random.Random) -> list[str]:
    try:
        return list(case(disk, work, num_pages, draw))
    except Exception as error:
        logging.exception("a case raised")
        return [f"raised {error!r}"]


if __name__ == "__main__":
    found = every_case(Path(sys.argv[1]), int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
    print(json.dumps({"cases": found.cases, "violations": found.violations}))
