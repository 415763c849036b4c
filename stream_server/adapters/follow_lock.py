"""The lock of a folder that is followed: it has one follower."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server.adapters.follow_files import WILDCARD
from stream_server.errors import ConfigError

LOCK_WAIT_S = 10.0
LOOK_S = 0.1


@contextmanager
def lock_of(pattern: str) -> Iterator[int]:
    """Hold the lock of the folder of a pattern; the solver inherits the descriptor, and with it the lock.

    It lies in a folder that is there already: some solvers want to make theirs themselves, or empty it.

    Raises:
        ConfigError: somebody else follows this folder, what an earlier one has started still runs, or no lock can be
            made there.
    """
    folder = Path(os.path.abspath(WILDCARD.split(pattern)[0])).parent
    place = folder if folder == Path.cwd() else folder.parent
    while not place.is_dir():
        place = place.parent
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    lock = place / f".stream-follow-{name}"
    needs = "stream-follow needs a file that it can write and lock there, so that each folder has one follower"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{lock} cannot be opened: {error.strerror}. {needs}") from error
    deadline = time.monotonic() + LOCK_WAIT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"{folder} is followed already, by process {os.read(descriptor, 20).decode(errors='replace')} "
                        "or the solver that it has started: give each simulation a folder of its own, such as by a "
                        "pattern that is relative to that of the attempt"
                    ) from None
                time.sleep(LOOK_S)
            except OSError as error:
                raise ConfigError(f"{lock} cannot be locked: {error.strerror}. {needs}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
