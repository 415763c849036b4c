"""What a job is, and how it ended."""

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOG_FILE = "output.log"
MOST_DIGITS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """What to run. `folder` is where it runs and its output.log lies.

    `environment` is all it gets. Its processes have one of `marks` as their `STREAM_CONNECTION`, and those of every
    other job another one.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    marks: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A job is over, and so is every process of it. `exit_code` is 128 + n after signal n, None if unknown.

    `unseen`: it was adopted, and left no word of how it ended.
    """

    folder: Path
    exit_code: int | None
    reason: str
    unseen: bool = False


def exit_code_in(line: bytes) -> int | None:
    """What a shell wrote of how a process ended; None when that is no exit code."""
    word = line.strip()
    return int(word) if word.isdigit() and len(word) <= MOST_DIGITS else None


def exit_code_of(file: Path) -> int | None:
    """What a shell wrote into a file, or None as long as its line is not complete."""
    try:
        line = file.read_bytes()
    except OSError:
        return None
    return exit_code_in(line) if line.endswith(b"\n") else None


def describe(code: int) -> str:
    """How a process ended, in words, from the exit code a shell gives."""
    with contextlib.suppress(ValueError):
        if code > 128:
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"
