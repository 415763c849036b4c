"""The owner of files: what others made, or could have changed, is not trusted; and who may read what we write.

Why: docs/decisions/0068-umask.md
"""

import errno
import grp
import os
import pwd
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


def others_may_rename_in(folder: Path) -> Path | None:
    """The first folder, from this one upwards, with entries that others may rename; None if there is none.

    They can give the name of what is below it to something of theirs.
    """
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        status = os.stat(each)
        if others_may_write(status) and not status.st_mode & stat.S_ISVTX and not _is_of_one_user(status):
            return each
    return None


def _is_of_one_user(status: os.stat_result) -> bool:
    """Whether its group alone may write, and has no other member than its owner, as users of Debian have one."""
    if status.st_mode & stat.S_IWOTH:
        return False
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and not set(group.gr_mem) - {owner.pw_name}


def require_ours(status: os.stat_result, path: Path | str) -> None:
    """Ensure that nobody else can have made or changed a file.

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


def first_untrusted(folder: Path) -> tuple[Path, str] | None:
    """The first entry in a folder, or in those below it, that somebody else may have put there, and what tells so.

    A file of ours that has another name may lie elsewhere, too: a link to it was made in a folder that was open.
    """
    for root, folders, files in os.walk(folder, onerror=_refuse):
        for name in (*folders, *files):
            status = os.lstat(path := Path(root, name))
            if not is_ours(status):
                return path, f"belongs to {name_of(status.st_uid)}"
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                return path, "is a file with another name elsewhere (a hard link)"
    return None


def name_of(user: int) -> str:
    """A user, in words."""
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"


def _refuse(error: OSError) -> None:
    raise error
