"""The owner of files: what others made, or could have changed, is not trusted; and who may read what we write."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def private_files(*, group_reads: bool = False) -> Iterator[None]:
    """Within the block, what this process and its children write is its owner's alone; or its group may read it.

    For the composition root of a program: the umask, which libraries obey as well, is that of the whole process.
    """
    before = os.umask(0o027 if group_reads else 0o077)
    try:
        yield
    finally:
        os.umask(before)


def is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user, or to root, who could read and change all of ours anyway."""
    return status.st_uid in (os.geteuid(), 0)


def others_may_write(status: os.stat_result) -> bool:
    """Whether its mode lets others change a file, or the entries of a folder."""
    return bool(status.st_mode & OTHERS_WRITE)


def require_ours(status: os.stat_result, path: Path | str) -> None:
    """See that nobody else can have made or changed a file.

    Raises:
        PermissionError: it belongs to somebody else, or others may write into it.
    """
    if not is_ours(status):
        raise PermissionError(errno.EPERM, f"It belongs to user {status.st_uid}, and is not trusted", str(path))
    if others_may_write(status):
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(
            errno.EPERM, f"Others may write into it (mode {mode:04o}), so it is not trusted", str(path)
        )


def first_of_others(folder: Path) -> Path | None:
    """The first entry in a folder, or in those below it, that belongs to somebody else."""
    for root, folders, files in os.walk(folder, onerror=_refuse):
        for name in (*folders, *files):
            if not is_ours(os.lstat(path := Path(root, name))):
                return path
    return None


def _refuse(error: OSError) -> None:
    raise error
