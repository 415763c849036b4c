"""A program of the sweep."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.sweep.calls.ran import Ran, Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Something that changes a folder.

    `make` prepares the folder, `run` is what meets the fault, and says what a user would be told, and `judge` restarts
    from what is left, without faults, and names what should not be.
    """

    name: str
    make: Callable[[Path], None]
    run: Callable[[Path, Say], None]
    judge: Callable[[Path, Ran], Iterator[str]]
