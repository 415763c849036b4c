"""What a job is, and how it ended."""

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOG_FILE = "output.log"


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


def describe(code: int) -> str:
    """How a process ended, in words, from the exit code a shell gives."""
    with contextlib.suppress(ValueError):
        if code > 128:
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"
