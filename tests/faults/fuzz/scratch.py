"""Files for readers that take nothing else: in memory, where that can be, since they then cost some microseconds."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "STREAM_FUZZ_SCRATCH"
IN_MEMORY = Path("/dev/shm")


def folder() -> Path:
    """A new folder, removed when the interpreter ends."""
    made = Path(tempfile.mkdtemp(prefix="fuzz-", dir=os.environ.get(VARIABLE, _in_memory())))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@contextmanager
def for_processes() -> Iterator[dict[str, str]]:
    """The environment of processes that libFuzzer ends, after which nothing of their interpreter runs any more."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_in_memory()) as scratch:
        yield {**os.environ, VARIABLE: scratch}


def _in_memory() -> Path | None:
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
