"""Counts how often a rank has met the others.

Why: docs/decisions/0006-failing-rank.md
"""

from collections.abc import Iterator
from contextlib import contextmanager


class CollectiveCalls:
    """Counts the collective calls of this rank, and names the one that is under way.

    Written by the main thread, read by the watchdog's. An exception that ends a call leaves its name: the others may
    still be in it.
    """

    def __init__(self) -> None:
        self.num = 0
        self.under_way = ""

    def begin(self, name: str) -> None:
        self.under_way = name

    def end(self) -> None:
        self.num += 1
        self.under_way = ""

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Within, the main thread is in the collective call of this name."""
        self.begin(name)
        yield
        self.end()
