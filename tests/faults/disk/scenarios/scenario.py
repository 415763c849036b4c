"""The protocol of all scenarios."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

Tell = Callable[[object], None]
"""Called with a fact as soon as the program may count on it, or before it tries for one."""


class Scenario(Protocol):
    """A program that writes to a disk, and goes on after a power failure."""

    @property
    def name(self) -> str: ...

    def prepare(self, folder: Path) -> Sequence[object]:
        """Make what is on the disk long before; gives what was told of it."""
        ...

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        """Do what is cut short by the power failure."""
        ...

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        """Start again, check all that was told, go on, and check that this can be read again.

        Raises:
            AssertionError: a promise is broken; any other exception says so as well.
        """
        ...
