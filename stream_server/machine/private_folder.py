"""The private folder in which the sockets of a study are.

Why: docs/decisions/0079-trust-in-the-journal.md
"""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server.storage.ownership import OTHERS, is_ours, others_may_rename_in

PREFIX = "stream-launcher-"
# A path of a socket has at most 107 bytes, and some 40 come after the folder.
MAX_BYTES = 60


def new_name() -> Path:
    """A short, unused path in `place`."""
    return place() / f"{PREFIX}{secrets.token_hex(8)}"


def place() -> Path:
    """The folder for temporary files, with a short path, in which this user may write; /tmp if there is none.

    Nobody else may rename what is there, and give its name to something of his: sockets in our folders ask for no keys,
    and what has a name of ours is removed.
    """
    wanted = (os.path.abspath(name) for name in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")) if name)
    places = [*wanted, "/tmp", f"/run/user/{os.geteuid()}", "/var/tmp"]  # noqa: S108 (names in it are random)
    # A simulation may run in a locale that has other bytes for other letters.
    short = (place for place in places if len(place) < MAX_BYTES and place.isascii())
    return Path(next((place for place in short if _is_usable(place)), "/tmp"))  # noqa: S108


def _is_usable(place: str) -> bool:
    return os.access(place, os.W_OK | os.X_OK) and others_may_rename_in(Path(place)) is None


@contextmanager
def temporary() -> Iterator[Path]:
    """A new private folder, which is removed at the end of the block.

    Raises:
        OSError: it cannot be made.
    """
    folder = new_name()
    make(folder, again=False)
    try:
        yield folder
    finally:
        remove(folder)


def make(folder: Path, *, again: bool) -> None:
    """Make the folder such that nobody else can look into it; only `again` may it be there already, if it is private.

    Raises:
        OSError: it is there, or cannot be made.
    """
    if not (again and is_private(folder)):
        folder.mkdir(mode=0o700)


def is_private(folder: Path) -> bool:
    """Whether this is a folder of ours, no link to one, that nobody else can look into."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and is_ours(status) and not status.st_mode & OTHERS


def may_be_used(folder: Path) -> bool:
    """Whether it has a name as `new_name` gives, and is private or can be made: nothing is there."""
    return folder.name.startswith(PREFIX) and (is_private(folder) or not os.path.lexists(folder))


def link(folder: Path) -> str:
    """The address at which a launcher listens for rank 0."""
    return f"ipc://{folder}/link"


def of(address: str) -> Path:
    return Path(address.removeprefix("ipc://")).parent


def remove(folder: Path) -> None:
    """Remove one of ours, if it is still there; nothing else is touched."""
    if folder.name.startswith(PREFIX) and is_private(folder):
        shutil.rmtree(folder, ignore_errors=True)
