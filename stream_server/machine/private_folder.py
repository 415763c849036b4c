"""The private folder in which the sockets of a study are."""

import os
import secrets
import shutil
import tempfile
from pathlib import Path

PREFIX = "stream-launcher-"
# A path of a socket has at most 107 bytes, and some 40 come after the folder.
MAX_BYTES = 60


def new_name() -> Path:
    """A short path that nobody has ever used."""
    temporary = tempfile.gettempdir()
    return Path(temporary if len(os.fsencode(temporary)) < MAX_BYTES else "/tmp") / f"{PREFIX}{secrets.token_hex(8)}"


def make(folder: Path, *, again: bool) -> None:
    """Make the folder such that nobody else can look into it; only `again` may it be there already.

    Raises:
        OSError: it is there, or cannot be made.
    """
    folder.mkdir(mode=0o700, exist_ok=again)


def link(folder: Path) -> str:
    """The address at which a launcher listens for rank 0."""
    return f"ipc://{folder}/link"


def of(address: str) -> Path:
    """The folder of an address."""
    return Path(address.removeprefix("ipc://")).parent


def remove(folder: Path) -> None:
    """Remove one of ours, if it is still there; nothing else is touched."""
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
